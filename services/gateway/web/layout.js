// Where the services stand in the diagram, on a wide page and on a phone, and where dots go.

const WIDTH = 148;
const HEIGHT = 104;
const PER_LINE = 8;
const GAP = 15;
const MAX_NUM_DOTS = 16;

export const TITLES = {
  gateway: "Gateway", scheduler: "Scheduler", prefill: "Prefill", decode: "Decode",
  draft: "Draft", kv: "KV manager",
};

const LAYOUTS = {
  wide: {
    size: [720, 322],
    at: { gateway: [4, 56], scheduler: [194, 56], prefill: [384, 56], decode: [568, 56], kv: [384, 214], draft: [568, 214] },
    edges: {
      ask: "M152 108H194",
      place: "M342 108H384",
      hand: "M532 108H568",
      local: "M268 56V28H600V56",
      tokens: "M664 56V10H78V56",
      write: "M458 160V214",
      read: "M606 160V186H500V214",
      propose: "M676 160V214",
    },
    back: [[664, 56], [664, 10], [78, 10], [78, 56]],
    spark: { x: 4, y: 214, width: 338, height: 104 },
    labels: { tokens: [371, 10], local: [420, 41], write: [452, 191, "end"], read: [553, 200], propose: [682, 191, "start"] },
  },
  tall: {
    size: [340, 568],
    at: { gateway: [4, 30], scheduler: [188, 30], prefill: [4, 190], decode: [188, 190], kv: [4, 352], draft: [188, 352] },
    edges: {
      ask: "M152 82H188",
      place: "M224 134V162H78V190",
      hand: "M152 242H188",
      local: "M300 134V190",
      tokens: "M336 230H339V12H78V30",
      write: "M50 294V352",
      read: "M226 294V324H120V352",
      propose: "M296 294V352",
    },
    back: [[338, 230], [338, 12], [78, 12], [78, 30]],
    spark: { x: 4, y: 474, width: 332, height: 90 },
    labels: { tokens: [210, 12], local: [294, 168, "end"], write: [56, 330, "start"], read: [172, 338], propose: [302, 330, "start"] },
  },
};

export const LABELS = { tokens: "tokens", local: "short prompts", write: "KV", read: "reads KV", propose: "drafts" };

export function layoutFor(width) {
  const { at, ...rest } = width < 520 ? LAYOUTS.tall : LAYOUTS.wide;
  const boxes = Object.fromEntries(Object.entries(at).map(([role, [x, y]]) => [role, { x, y, width: WIDTH, height: HEIGHT }]));
  return { ...rest, boxes, isTall: width < 520 };
}

/** Where a request is: in the box of a service, or on the way between two. */
export function placeOf(request) {
  switch (request.stage) {
    case "queued": return "scheduler";
    case "prefilling": return request.prefill_worker ? "prefill" : "decode";
    case "handing_over": return "hand";
    case "decoding": return "decode";
    default: return "gateway";
  }
}

/** The point of the dot with this index at a place; those that find no room lie under the last. */
export function pointAt(layout, place, index) {
  const { boxes, isTall } = layout;
  if (place === "hand") {
    const { x, y } = boxes.decode;
    return [x - (isTall ? 18 : 18), y + HEIGHT / 2 + (index % 5) * 7 - 14];
  }
  const box = boxes[place];
  const slot = Math.min(index, MAX_NUM_DOTS - 1);
  return [box.x + 20 + (slot % PER_LINE) * GAP, box.y + 74 + Math.floor(slot / PER_LINE) * GAP];
}
