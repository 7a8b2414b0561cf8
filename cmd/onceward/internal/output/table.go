package output

import (
	"strings"
	"unicode/utf8"
)

// Table is rows under a head. Its cells are safe: they come from [Text] or from this package.
type Table struct {
	head []string
	rows [][]string
	// whole is how many of the first columns are never cut.
	whole int
}

// NewTable returns a table with a head.
func NewTable(head ...string) *Table { return &Table{head: head} }

// Whole sets how many of the first columns are never cut: a hash without its end names nothing.
func (t *Table) Whole(columns int) *Table {
	t.whole = columns
	return t
}

// Add appends a row.
func (t *Table) Add(cells ...string) { t.rows = append(t.rows, cells) }

// least is the smallest width of a cut column.
const least = 8

// Table writes a table in columns. On a terminal its widest columns are cut, so that lines do not wrap where possible.
func (o *Output) Table(t *Table) {
	widths := make([]int, len(t.head))
	all := append([][]string{t.head}, t.rows...)
	for _, row := range all {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	o.narrow(widths, t.whole)
	for _, row := range all {
		var line strings.Builder
		for i, cell := range row {
			cell = cut(cell, widths[i])
			line.WriteString(cell)
			if i < len(row)-1 {
				line.WriteString(strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell)+gap))
			}
		}
		o.Line("%s", strings.TrimRight(line.String(), " "))
	}
}

// gap is the room between two columns.
const gap = 2

// narrow cuts the widest column that may be cut, until all columns fit.
func (o *Output) narrow(widths []int, whole int) {
	if o.width == 0 {
		return
	}
	total := gap * (len(widths) - 1)
	for _, w := range widths {
		total += w
	}
	for total >= o.width && whole < len(widths) {
		widest := whole
		for i := whole; i < len(widths); i++ {
			if widths[i] > widths[widest] {
				widest = i
			}
		}
		if widths[widest] <= least {
			return
		}
		widths[widest]--
		total--
	}
}

// cut shortens a cell to a width and marks it as cut.
func cut(cell string, width int) string {
	if utf8.RuneCountInString(cell) <= width {
		return cell
	}
	return string([]rune(cell)[:max(width-1, 0)]) + "…"
}

// Fields writes names and values below each other. Empty values are left out.
func (o *Output) Fields(pairs ...string) {
	widest := 0
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			widest = max(widest, utf8.RuneCountInString(pairs[i]))
		}
	}
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			o.Line("  %-*s  %s", widest, pairs[i], pairs[i+1])
		}
	}
}
