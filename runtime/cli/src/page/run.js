// All parts of the page of a run, in order.

overview();
families();
timeline();
stepsTable();
memory();
graphTools();
drawGraph();
storedList();
// On a narrow screen a graph as wide as the screen is too small to read, on a wide one a small graph too large.
graph.scale = Math.max(0.6, Math.min(1, (find("graph-pane").clientWidth - 4) / graph.size.width));
resize();
navigation();
done();
