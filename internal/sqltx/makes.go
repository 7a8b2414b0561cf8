package sqltx

import "database/sql"

// Makes reports whether a pool would make a connection for who takes one now, beside those that are being made: it has
// none that is free, and may have more.
func Makes(db *sql.DB, beside int) bool {
	stats := db.Stats()
	return stats.Idle == 0 && (stats.MaxOpenConnections <= 0 || stats.InUse-beside < stats.MaxOpenConnections)
}
