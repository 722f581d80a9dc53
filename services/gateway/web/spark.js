// The line of the last minute: how many tokens a second went to clients.

import { makeSvg, rate, setText } from "./dom.js";

const NUM_SECONDS = 60;
const HEAD = 26;

/** The speed in each of the last seconds, the newest last. */
export class Speeds {
  constructor() {
    this.values = new Array(NUM_SECONDS).fill(0);
    this.second = Math.floor(performance.now() / 1000);
  }

  note(tokensPerS) {
    const second = Math.floor(performance.now() / 1000);
    const numNew = Math.min(second - this.second, NUM_SECONDS);
    this.second = second;
    // A second in which nothing came was as the one before it.
    for (let index = 0; index < numNew; index += 1) this.values.push(this.values.at(-1));
    this.values.splice(0, numNew);
    this.values[NUM_SECONDS - 1] = tokensPerS;
  }
}

export function newSpark({ x, y, width }) {
  return makeSvg("g", { class: "spark", transform: `translate(${x} ${y})` },
    makeSvg("text", { x: 0, y: 16, class: "box-side" }, "Tokens a second, last minute"),
    makeSvg("text", { x: width, y: 16, class: "box-side", "text-anchor": "end" }),
    makeSvg("path", { class: "spark-area" }),
    makeSvg("path", { class: "spark-line" }),
  );
}

export function drawSpark(spark, { width, height }, { values }) {
  const [, peak, area, line] = spark.children;
  const most = Math.max(...values);
  setText(peak, most ? `peak ${rate(most)}` : "");
  const points = values.map((value, index) => {
    const share = most ? value / most : 0;
    return `${((index * width) / (NUM_SECONDS - 1)).toFixed(1)} ${(height - share * (height - HEAD)).toFixed(1)}`;
  });
  line.setAttribute("d", `M${points.join("L")}`);
  area.setAttribute("d", `M0 ${height}L${points.join("L")}L${width} ${height}Z`);
}
