package mysql

import (
	"database/sql"

	driver "github.com/go-sql-driver/mysql"

	"github.com/onceward/onceward/store"
)

// DB returns the handle of a pool, which is best the one that [New] is given: it uses the transaction of the guard if the
// context carries one, and the pool otherwise. Repositories take it in the place of the pool, and stay as they are.
// Do not use it in handlers whose guard is on another database: it would use their transaction.
func DB(db *sql.DB) *store.SQLHandle { return store.NewSQLHandle(db) }

// OpenDB returns a pool of connections for statements of the application's own, such as those that read its tables
// outside of handlers. They are made as those for handlers are: to the first of several hosts that takes writes, and in a
// cluster so that they see what was committed on the other nodes. Close it when done.
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

// DriverConfigs says how to connect to each host of a URL, for tools that look at one after the other.
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
