/* Tables load their script (1.3 MB) when the first of them is shown: the page does not wait for it. */
(() => {
  "use strict";
  const { createElement, lazy, Suspense } = window.React;
  const SCRIPT = "/_dash-component-suites/dash_ag_grid/dash_ag_grid.min.js";

  const load = () =>
    new Promise((done, failed) => {
      const script = document.createElement("script");
      script.src = SCRIPT;
      script.onload = () => {
        const { AgGrid, getApi, getApiAsync } = window.dash_ag_grid;
        window.dash_ag_grid = { AgGrid: Later, getApi, getApiAsync };
        done({ default: AgGrid });
      };
      script.onerror = () => failed(new Error(`${SCRIPT} did not load`));
      document.head.append(script);
    });

  const Grid = lazy(load);

  function Later(props) {
    const place = createElement("div", { style: props.style }); // of the table's height: nothing moves
    return createElement(Suspense, { fallback: place }, createElement(Grid, props));
  }
  Later.dashRenderType = true; // as the component itself asks of Dash

  window.dash_ag_grid = { AgGrid: Later };
})();
