/* Traces that are chosen or dropped go to the server, where it takes any; and one line that tells how it went. */
(() => {
  "use strict";

  /* A line at the bottom of the page, text alone; a click puts it away. */
  function tell(text, isBad = false) {
    let line = document.getElementById("told");
    if (!line) {
      line = document.body.appendChild(document.createElement("div"));
      line.id = "told";
      line.setAttribute("role", "status");
      line.addEventListener("click", () => { line.textContent = ""; });
    }
    line.textContent = text;
    line.classList.toggle("bad", isBad);
  }
  window.spTell = tell;

  const area = () => document.querySelector("[data-upload]"); // only where uploads are allowed

  function send(files) {
    if (!area() || !files.length) return;
    const { upload, tooBig } = area().dataset;
    const size = [...files].reduce((sum, file) => sum + file.size, 0);
    if (size > Number(upload)) return tell(`Not uploaded: ${tooBig}.`, true);
    const form = new FormData();
    for (const file of files) form.append("files", file, file.name);
    const request = new XMLHttpRequest(); // fetch does not tell how far it is
    request.upload.addEventListener("progress", (event) => {
      if (event.lengthComputable) tell(`Uploading: ${Math.floor((100 * event.loaded) / event.total)} %`);
    });
    request.addEventListener("load", () => {
      if (request.status === 201) {
        const params = new URLSearchParams({ run: JSON.parse(request.responseText).run });
        const theme = new URLSearchParams(window.location.search).get("theme");
        if (theme) params.set("theme", theme);
        window.location.assign(`/?${params}`);
      } else tell(`Not uploaded: ${request.status === 413 ? tooBig : request.responseText.trim()}.`, true);
    });
    request.addEventListener("error", () => tell("Not uploaded: the connection ended.", true));
    request.open("POST", "/upload");
    request.send(form);
    tell("Uploading: 0 %");
  }

  function choose() {
    let input = document.getElementById("upload-files");
    if (!input) {
      input = document.body.appendChild(document.createElement("input"));
      Object.assign(input, { id: "upload-files", type: "file", multiple: true, hidden: true, accept: ".json,.gz" });
      input.addEventListener("change", () => {
        send([...input.files]);
        input.value = ""; // the same files can be chosen again
      });
    }
    input.click();
  }

  document.addEventListener("click", (event) => {
    if (event.target instanceof Element && event.target.closest("[data-upload]")) choose();
  });

  const hasFiles = (event) => Boolean(area()) && [...(event.dataTransfer?.types || [])].includes("Files");
  document.addEventListener("dragover", (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    document.body.classList.add("dropping");
  });
  document.addEventListener("dragleave", (event) => {
    if (!event.relatedTarget) document.body.classList.remove("dropping");
  });
  document.addEventListener("drop", (event) => {
    document.body.classList.remove("dropping");
    if (!hasFiles(event)) return;
    event.preventDefault();
    send([...event.dataTransfer.files]);
  });
})();
