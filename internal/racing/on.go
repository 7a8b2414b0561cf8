//go:build race

package racing

// Enabled reports whether the race detector watches this program.
const Enabled = true
