package doctor

import "context"

// Granted are the rights that the doctor expects.
var Granted = granted

// ExamineUnlocked examines a file with connections that do not lock the doctor's own.
func ExamineUnlocked(ctx context.Context, path string) (*Report, error) {
	p, err := newSQLite(ctx, path)
	if err != nil {
		return nil, err
	}
	defer p.close()
	p.parameters = "&nolock=1"
	return &Report{Store: path, Results: examine(ctx, p, sqliteTrials)}, nil
}

// InMemory reports whether a directory is on a file system that is not a disk's.
func InMemory(dir string) bool {
	r := new(Result)
	_ = tryFileSystem(context.Background(), &sqlite{dir: dir}, r) // where it cannot be told, it is not
	return len(r.Findings) > 0
}

// Redacted is a URL as a report shows it.
func Redacted(url string) string { return redacted(url) }
