//go:build !race

// Package racing reports whether the race detector watches a program. The detector makes pools forget at random, keeps
// on the heap what is otherwise on the stack, and makes a search ten times slower. Tests ask this package, so that
// every test file is compiled with the detector and without.
package racing

// Enabled reports whether the race detector watches this program.
const Enabled = false
