// Package callercrash shows, with real processes, that a caller with a journal finishes what it began: it is killed at
// random while it pays through a payments system that fails and is killed too, and in the end each payment was made
// once, and the caller was told of each. It holds tests only.
package callercrash
