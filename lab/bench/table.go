package main

import (
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
)

// table is a Markdown table: its first column is text, the others are numbers.
type table struct {
	title string
	head  []string
	rows  [][]string
}

func (t *table) add(cells ...string) { t.rows = append(t.rows, cells) }

// print writes the table as Markdown.
func (t *table) print(out io.Writer) {
	if t.title != "" {
		fmt.Fprintf(out, "%s\n\n", t.title)
	}
	rule := make([]string, len(t.head))
	for i := range rule {
		rule[i] = "---:"
	}
	rule[0] = "---"
	for _, row := range append([][]string{t.head, rule}, t.rows...) {
		fmt.Fprintf(out, "| %s |\n", strings.Join(row, " | "))
	}
	fmt.Fprintln(out)
}

// keep prints the rows of a table as notes, and keeps it for the documentation.
func (r *report) keep(t *table) {
	r.note("%s", t.title)
	widths := make([]int, len(t.head))
	rows := append([][]string{t.head}, t.rows...)
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], len(cell))
		}
	}
	for _, row := range rows {
		line := fmt.Sprintf("%-*s", widths[0], row[0])
		for i, cell := range row[1:] {
			line += fmt.Sprintf("  %*s", widths[i+1], cell)
		}
		r.note("  %s", line)
	}
	r.tables = append(r.tables, t)
}

// grouped writes a whole number with separators between its thousands.
func grouped(value float64) string {
	digits := strconv.FormatInt(int64(math.Round(value)), 10)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}
