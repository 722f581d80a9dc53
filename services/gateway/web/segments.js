// The parts of a request's time, in the order in which they come. Pure.

export const PARTS = [
  ["queue", "queue"],
  ["prefill", "prefill"],
  ["hand-over", "hand-over"],
  ["other", "messages"],
  ["decode", "decode"],
];

const PART_OF_STAGE = {
  queued: "queue", prefilling: "prefill", handing_over: "hand-over", decoding: "decode",
};

export const isOver = ({ stage }) => !(stage in PART_OF_STAGE);

/**
 * Of measured times. What is left until the first token are messages, or the prefill itself where
 * the decode worker did it between its steps.
 */
export function segmentsOfTimes({ queue_ms, prefill_ms, hand_over_ms, ttft_ms, total_ms }) {
  const before = queue_ms + prefill_ms + hand_over_ms;
  return clean([
    ["queue", queue_ms],
    ["prefill", prefill_ms],
    ["hand-over", hand_over_ms],
    [prefill_ms ? "other" : "prefill", ttft_ms - before],
    ["decode", total_ms - Math.max(ttft_ms, before)],
  ]);
}

/** Of a request that runs, or whose parts nobody measured: by when it was seen in each stage. */
function segmentsOfMarks(marks, endMs) {
  return clean(marks.flatMap(([stage, atMs], index) => {
    const part = PART_OF_STAGE[stage];
    return part ? [[part, (marks[index + 1]?.[1] ?? endMs) - atMs]] : [];
  }));
}

export function segmentsOf(request, ageMs) {
  const { times, marks } = request;
  if (times && times.queue_ms != null) return segmentsOfTimes(times);
  return segmentsOfMarks(marks, ageMs);
}

export const totalOf = (segments) => segments.reduce((sum, [, ms]) => sum + ms, 0);

const clean = (segments) => segments.filter(([, ms]) => ms > 0);
