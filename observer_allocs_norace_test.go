//go:build !race

package onceward_test

// What is allocated beside the request itself, with one to spare for the pools that a collection empties.
const firstAllocs, replayAllocs, doAllocs, serveAllocs = 16, 6, 6, 4
