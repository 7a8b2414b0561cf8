package screen

import (
	"io"
	"os"
	"strconv"
)

// usualWidth is how wide a terminal is that does not say it.
const usualWidth = 80

// isTerminal reports whether a person looks at the output.
func isTerminal(out io.Writer) bool {
	file, ok := out.(*os.File)
	if !ok {
		return false
	}
	info, err := file.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// widthOf asks the terminal, then the environment, in which some shells keep it.
func widthOf(out io.Writer) int {
	if file, ok := out.(*os.File); ok {
		if columns := columnsOf(file); columns > 0 {
			return columns
		}
	}
	if columns, err := strconv.Atoi(os.Getenv("COLUMNS")); err == nil && columns > 0 {
		return columns
	}
	return usualWidth
}
