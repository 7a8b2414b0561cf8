//go:build !race

// Package racing reports whether a program runs with the race detector. The detector makes pools
// drop items at random, moves stack data to the heap, and makes a search ten times slower. Tests
// use this package, so that every test file is compiled both with and without the detector.
package racing

// Enabled reports whether the race detector is enabled.
const Enabled = false
