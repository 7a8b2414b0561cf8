// Package aftermath shows, with real processes on SQLite and PostgreSQL, what happens after a crash: a shop is killed or
// paused at every point of an operation, and its provider fails in every way; in the end each operation is done once, and
// nothing stays unknown that can be found out. It holds tests only.
package aftermath
