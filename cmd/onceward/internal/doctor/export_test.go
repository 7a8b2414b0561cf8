package doctor

import (
	"cmp"
	"context"
	"time"

	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/storeurl"
)

// Granted are the rights that the doctor expects.
var Granted = granted

// UsualSlowWrite and UsualArrival are configurations with a limit that a patient doctor keeps.
var (
	UsualSlowWrite = Config{slowWrite: defaultSlowWrite}
	UsualArrival   = Config{arrival: defaultArrival}
)

// Patient returns the configuration with limits that no machine exceeds which only stands still.
func Patient(c Config) Config {
	c.Timeout = cmp.Or(c.Timeout, 10*await.Limit)
	c.slowWrite, c.arrival = cmp.Or(c.slowWrite, time.Hour), cmp.Or(c.arrival, await.Limit)
	return c
}

// ExamineImpatient examines a database in which a transaction is old sooner.
func ExamineImpatient(ctx context.Context, url string, old time.Duration) (*Report, error) {
	p, err := newPostgres(&storeurl.Location{URL: url}, Patient(Config{}))
	if err != nil {
		return nil, err
	}
	defer p.close()
	p.old = old
	if err := p.meet(ctx); err != nil {
		return nil, err
	}
	return &Report{Store: url, Results: examine(ctx, time.Minute, p, postgresTrials)}, nil
}

// ExamineUnlocked examines a file with connections that do not lock the doctor's own.
func ExamineUnlocked(ctx context.Context, path string) (*Report, error) {
	p, err := newSQLite(ctx, path)
	if err != nil {
		return nil, err
	}
	defer p.close()
	p.parameters = "&nolock=1"
	return &Report{Store: path, Results: examine(ctx, time.Minute, p, sqliteTrials)}, nil
}

// InMemory reports whether a directory is on a file system that is not a disk's.
func InMemory(dir string) bool {
	r := new(Result)
	_ = tryFileSystem(context.Background(), &sqlite{dir: dir}, r) // where it cannot be told, it is not
	return len(r.Findings) > 0
}
