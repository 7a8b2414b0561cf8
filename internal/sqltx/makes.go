package sqltx

import "database/sql"

// Makes reports whether a pool would make a connection for a caller that takes one now: no connection is free, and the
// pool may have more. beside is the number of connections that other callers are making.
func Makes(db *sql.DB, beside int) bool {
	stats := db.Stats()
	return stats.Idle == 0 && (stats.MaxOpenConnections <= 0 || stats.InUse-beside < stats.MaxOpenConnections)
}
