"use strict";
// The page can be read without this: it adds a reading under the pointer and copy buttons.
for (const chart of document.querySelectorAll(".chart")) {
  const { mean, left, right, top, bottom } = JSON.parse(chart.dataset.chart);
  const cursor = chart.querySelector(".cursor");
  const reading = chart.querySelector(".reading");
  const show = (length) => {
    const x = left + ((length - 1) / Math.max(1, mean.length - 1)) * (right - left);
    cursor.setAttribute("d", `M${x} ${top}V${bottom}`);
    const late = length > mean.length / 2;
    reading.setAttribute("x", late ? x - 4 : x + 4);
    reading.setAttribute("text-anchor", late ? "end" : "start");
    reading.textContent = `length ${length}: ${(100 * mean[length - 1]).toFixed(1)}%`;
    chart.classList.add("reads");
    chart.dataset.length = length;
  };
  const hide = () => {
    cursor.setAttribute("d", "");
    reading.textContent = "";
    chart.classList.remove("reads");
  };
  const follow = (event) => {
    const box = chart.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * chart.viewBox.baseVal.width;
    const share = (x - left) / (right - left);
    show(Math.min(mean.length, Math.max(1, 1 + Math.round(share * (mean.length - 1)))));
  };
  chart.addEventListener("pointermove", follow);
  chart.addEventListener("pointerdown", follow);
  chart.addEventListener("pointerleave", hide);
}
// On a phone the runs are folded; a link to one opens it.
if (window.matchMedia("(max-width: 700px)").matches) {
  for (const card of document.querySelectorAll("details.card")) card.open = false;
}
const unfold = () => {
  const card = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (card && card.tagName === "DETAILS") { card.open = true; card.scrollIntoView(); }
};
window.addEventListener("hashchange", unfold);
unfold();
for (const block of document.querySelectorAll("details pre")) {
  if (!navigator.clipboard) break;
  const button = document.createElement("button");
  button.type = "button";
  button.className = "copy";
  button.textContent = "Copy";
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(block.textContent);
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
  block.after(button);
}
