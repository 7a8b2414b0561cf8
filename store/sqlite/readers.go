package sqlite

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"time"

	"github.com/ncruces/go-sqlite3"
	"github.com/onceward/onceward"
)

// readers is a pool of connections that read records past the writer.
type readers struct {
	idle  chan *reader
	once  sync.Once
	ended chan struct{}
	all   []*reader
}

// reader is one connection with its look-up prepared.
type reader struct {
	conn *sqlite3.Conn
	get  *sqlite3.Stmt
	key  []byte
}

// minReaders keeps a slow read from holding up all others.
const minReaders = 4

func openReaders(file string, busy time.Duration) (*readers, error) {
	n := max(minReaders, runtime.GOMAXPROCS(0))
	r := &readers{idle: make(chan *reader, n), ended: make(chan struct{})}
	for range n {
		one, err := openReader(file, busy)
		if err != nil {
			return nil, errors.Join(err, r.close())
		}
		r.all = append(r.all, one)
		r.idle <- one
	}
	return r, nil
}

func openReader(file string, busy time.Duration) (*reader, error) {
	conn, err := sqlite3.Open(file)
	if err != nil {
		return nil, unavailable(err)
	}
	if err := configure(conn, busy, readerPragmas); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	get, _, err := conn.Prepare(selectRecord)
	if err != nil {
		return nil, errors.Join(unavailable(err), conn.Close())
	}
	return &reader{conn: conn, get: get}, nil
}

// with lends a reader to f.
func (r *readers) with(ctx context.Context, f func(*reader) error) error {
	if err := ctx.Err(); err != nil {
		return unavailable(err)
	}
	select {
	case <-r.ended:
		return errClosed
	default:
	}
	var one *reader
	select {
	case one = <-r.idle:
	default:
		select {
		case one = <-r.idle:
		case <-r.ended:
			return errClosed
		case <-ctx.Done():
			return unavailable(ctx.Err())
		}
	}
	defer func() { r.idle <- one }()
	return unavailable(f(one))
}

// get reads one record; there is none if its state is StateNone.
func (r *readers) get(ctx context.Context, id onceward.ID) (rec onceward.Record, err error) {
	err = r.with(ctx, func(one *reader) error {
		one.key = id.AppendBinary(one.key[:0])
		rec, _, err = loadRecord(one.get, id, one.key)
		return err
	})
	return rec, err
}

// close waits for the reads under way and closes the connections.
func (r *readers) close() error {
	var errs []error
	r.once.Do(func() {
		close(r.ended)
		for range r.all {
			one := <-r.idle
			errs = append(errs, one.get.Close(), one.conn.Close())
		}
	})
	return errors.Join(errs...)
}
