// Package crashtest shows, with real processes on SQLite and PostgreSQL, what happens after a crash: a shop is killed
// or paused at many points of an operation, and its provider times out, fails, resets and holds back; in the end no
// operation is done twice, and nothing stays unknown that can be found out. It holds tests only.
package crashtest
