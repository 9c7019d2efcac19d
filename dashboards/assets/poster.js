/* Bars that stand in for a figure until plotly has drawn it (dashboards/poster.py says what they hold). */
(() => {
  "use strict";
  const made = (tag, className, text, style) => {
    const one = document.createElement(tag);
    if (className) one.className = className;
    if (text) one.textContent = text;
    Object.assign(one.style, style);
    return one;
  };

  function draw(place) {
    const { title, ticks, rows } = JSON.parse(place.dataset.bars);
    const axis = made("div", "axis", "", { gridRow: `1 / span ${rows.length}` });
    for (const [text, at] of ticks) {
      const line = made("span", "", "", { left: `${at}%` });
      line.append(made("b", "", text));
      axis.append(line);
    }
    axis.append(made("small", "", title));
    const lines = rows.flatMap(([name, parts], row) => {
      const track = made("div", "track", "", { gridRow: `${row + 1}` });
      track.append(
        ...parts.map(([share, look, backgroundColor, color, text]) =>
          made("i", look, text, { width: `${share}%`, backgroundColor, color })),
      );
      return [made("span", "name", name, { gridRow: `${row + 1}` }), track];
    });
    place.replaceChildren(axis, ...lines);
  }

  const seen = new WeakMap(); // what each shows: a page that changes keeps its elements
  new MutationObserver(() => {
    for (const place of document.querySelectorAll(".poster")) {
      if (seen.get(place) === place.dataset.bars) continue;
      seen.set(place, place.dataset.bars);
      draw(place);
    }
  }).observe(document, { childList: true, subtree: true, attributeFilter: ["data-bars"] });
})();
