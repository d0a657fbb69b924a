/* Arrow keys walk over a map, so that Tab passes it in one step. Without this script every cell is a stop. */
document.querySelectorAll("div.map").forEach(function (map) {
  var cells = Array.prototype.slice.call(map.querySelectorAll("a"));
  cells.forEach(function (cell, at) { cell.tabIndex = at ? -1 : 0; });
  map.addEventListener("keydown", function (event) {
    var at = cells.indexOf(document.activeElement);
    if (at < 0 || event.ctrlKey || event.altKey || event.metaKey) return;
    var row = cells.filter(function (cell) { return cell.offsetTop === cells[at].offsetTop; });
    var column = cells[at].offsetLeft, to = null;
    if (event.key === "ArrowRight") to = cells[at + 1];
    else if (event.key === "ArrowLeft") to = cells[at - 1];
    else if (event.key === "Home") to = row[0];
    else if (event.key === "End") to = row[row.length - 1];
    else if (event.key === "ArrowDown") to = cells.slice(at).find(function (cell) {
      return cell.offsetTop > cells[at].offsetTop && cell.offsetLeft >= column; });
    else if (event.key === "ArrowUp") to = cells.slice(0, at).reverse().find(function (cell) {
      return cell.offsetTop < cells[at].offsetTop && cell.offsetLeft <= column; });
    else return;
    event.preventDefault();
    if (!to) return;
    cells[at].tabIndex = -1;
    to.tabIndex = 0;
    to.focus();
  });
});
