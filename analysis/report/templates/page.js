// What the page does when it opens.

// A link to something inside a closed element opens the element.
function openTarget() {
  let node = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  for (; node; node = node.parentElement) if (node.tagName === "DETAILS") node.open = true;
}

// An open menu closes with a click elsewhere, with a link in it, and with Escape.
function closeMenus(event) {
  for (const menu of document.querySelectorAll("details.menu[open]")) {
    const isInside = menu.contains(event.target);
    if (event.key === "Escape" || !isInside || event.target.tagName === "A") menu.open = false;
  }
}

// What takes time to draw is drawn when it comes near.
function whenSeen(selector, draw) {
  const observer = new IntersectionObserver((entries) => {
    for (const { isIntersecting, target } of entries) {
      if (!isIntersecting) continue;
      observer.unobserve(target);
      draw(target);
    }
  }, { rootMargin: "300px" });
  for (const holder of document.querySelectorAll(selector)) observer.observe(holder);
}

for (const table of document.querySelectorAll("table.sortable")) makeSortable(table);
for (const holder of document.querySelectorAll("script.copies")) addTableTools(holder);
for (const figure of document.querySelectorAll("figure")) addFigureTools(figure);
addPicker(document.querySelector(".bar"));
whenSeen(".compare", drawComparison);
whenSeen("[data-stream]", drawCurves);
document.addEventListener("click", closeMenus);
document.addEventListener("keydown", (event) => event.key === "Escape" && closeMenus(event));
addEventListener("hashchange", openTarget);
openTarget();
