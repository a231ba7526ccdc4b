// SPDX-License-Identifier: Apache-2.0
/* export_dot.h - a graph for other eyes: Graphviz, a browser, other programs. One way only: what is
 * read back is the text form (graph.h). Names may hold any bytes; each format is escaped so that
 * none of them ends a string or opens a tag, and bytes that are not UTF-8 become U+FFFD. */
#ifndef LATHE_IR_EXPORT_DOT_H
#define LATHE_IR_EXPORT_DOT_H

#include "ir/graph.h"

/* A digraph: one box a node, one edge an operand, dashed edges for updates. */
void graph_print_dot(const struct graph *g, struct buf *out);
/* One self-contained page without scripts: a table of nodes (row id "n12") linked by operands and
 * uses, outputs and updates, coloured by family of ops. */
void graph_print_html(const struct graph *g, struct buf *out);
/* {"name", "values": [{"id", "name", "dtype", "shape", "node"}], "nodes": [{"id", "op", "inputs",
 * "outputs", "attrs", "origin"}], "outputs": [{"name", "value"}], "updates": [{"target", "next"}]}.
 * Ids are numbers from 1; symbolic sizes, infinite and NaN numbers and tensors are strings, written
 * as in the text form. */
void graph_print_json(const struct graph *g, struct buf *out);

#endif
