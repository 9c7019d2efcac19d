"use strict";
(() => {
  let chosen = null;
  try { chosen = localStorage.getItem("sp-profile-theme"); } catch (error) { chosen = null; } // file:// may forbid it
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
