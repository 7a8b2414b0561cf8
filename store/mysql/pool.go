package mysql

import (
	"database/sql"

	driver "github.com/go-sql-driver/mysql"

	"github.com/onceward/onceward/store"
)

// DB returns a handle of a pool, usually of the pool that is passed to [New]. The handle uses the transaction of the
// guard if the context carries one, and the pool otherwise. Repositories use the handle in place of the pool, without
// other changes. Do not use it in handlers whose guard is on another database: it would use their transaction.
func DB(db *sql.DB) *store.SQLHandle { return store.NewSQLHandle(db) }

// OpenDB returns a pool of connections for the application's own statements, such as reads of its tables outside of
// handlers. The connections are made like the connections for handlers: to the first of several hosts that accepts
// writes, and in a cluster so that they see the commits of the other nodes. Close it when done.
func OpenDB(url string) (*sql.DB, error) {
	where, err := parseURL(url)
	if err != nil {
		return nil, err
	}
	connector, err := newConnector(where, func(config *driver.Config) {
		config.InterpolateParams, config.CheckConnLiveness, config.MaxAllowedPacket = true, true, 0
	})
	if err != nil {
		return nil, err
	}
	o := defaults()
	return openPool(connector, &o), nil
}

// DriverConfigs returns the driver's configuration for each host
// of a URL, for tools that connect to one host after the other.
func DriverConfigs(url string) (configs []*driver.Config, err error) {
	where, err := parseURL(url)
	if err != nil {
		return nil, err
	}
	for _, address := range where.addresses {
		config := where.config.Clone()
		config.Addr = address
		configs = append(configs, config)
	}
	return configs, nil
}
