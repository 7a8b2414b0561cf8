// Package outboxcrash shows, with real processes, databases and brokers, that what leaves the database through the
// outbox arrives: workers are killed and brokers restarted while messages flow, and in the end each was applied once,
// in order. It holds tests only.
package outboxcrash
