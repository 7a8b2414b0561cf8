// Package load is what the demo does to a payments API: clients that ask for payments, refunds and bookings, lose their
// connections on the way, and ask again with the same key until they have a definitive answer. Each keeps a note of what it
// asked for and what it was told.
package load
