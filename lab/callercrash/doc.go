// Package callercrash shows, with real processes, that a caller with an outbox finishes what it began: it is killed at
// random while it pays through a payments system that fails and is killed too, and in the end each payment was made
// once, and each answer was reported. It holds tests only.
package callercrash
