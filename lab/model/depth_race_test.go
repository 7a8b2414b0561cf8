//go:build race

package model

// depth is smaller under the race detector, which slows the search down tenfold and cannot find anything in it: each
// search is the work of one goroutine.
const depth = 3
