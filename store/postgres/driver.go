package postgres

import (
	"context"
	"runtime/debug"
	"strconv"
	"strings"
)

// driverModule is the driver, as the build info names it.
const driverModule = "github.com/jackc/pgx/v5"

// firstRepeating is the minor version of the first release of the driver that calls a statement safe to repeat although
// its reply was lost. database/sql repeats what its driver calls so, and tells no one. fault_driver_test.go holds which
// releases do it, and for which statements.
const firstRepeating = 9

// warnOfDriver warns a program that hands over a *sql.DB if its driver lets database/sql repeat writes. Transactions of
// the store are safe from it, and so is a pgxpool.Pool, which repeats nothing: those who have one are not told.
func (s *Store) warnOfDriver(ctx context.Context) {
	if _, ok := s.handlers.(sqlSource); !ok || s.options.repeatingDriver {
		return
	}
	info, ok := s.options.buildInfo()
	if !ok {
		return
	}
	version, minor := driverVersion(info)
	if minor < firstRepeating {
		return
	}
	s.logger.WarnContext(ctx, "onceward: with this release of pgx database/sql runs a statement a second time, and "+
		"reports no error, if its reply was lost: an Exec without arguments outside of a transaction, or with the "+
		"simple protocol any Exec there. The transactions of handlers are safe. Elsewhere put such writes into a "+
		"transaction, or use a pgxpool.Pool, or pgx v5.8.0. Where that is done, WithRepeatingDriver ends this "+
		"warning", "pgx", version)
}

// driverVersion is the release of the driver that the program was built with, and its minor version. That is -1 where
// it cannot be told: in a test, or with a copy of the driver from elsewhere, which may repeat or not.
func driverVersion(info *debug.BuildInfo) (version string, minor int) {
	for _, module := range info.Deps {
		if module.Path != driverModule {
			continue
		}
		if module.Replace != nil {
			module = module.Replace
		}
		rest, ok := strings.CutPrefix(module.Version, "v5.")
		number, _, _ := strings.Cut(rest, ".")
		minor, err := strconv.Atoi(number)
		if !ok || err != nil || module.Path != driverModule {
			return module.Version, -1
		}
		return module.Version, minor
	}
	return "", -1
}
