package redis

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/onceward/onceward/internal/servers"
	"github.com/redis/rueidis"
)

// oldProgram is one that names records by their IDs, on a prefix of a server.
type oldProgram struct {
	testing.TB
	client rueidis.Client
	prefix string
	url    string
}

func newOldProgram(t testing.TB, url, prefix string) *oldProgram {
	t.Helper()
	where, err := parseURL(url)
	must(t, err)
	client, err := rueidis.NewClient(where.config(nil))
	must(t, err)
	t.Cleanup(client.Close)
	return &oldProgram{TB: t, client: client, prefix: prefix, url: url}
}

// reserve makes a record as its script does: not without its entry in the index of what is in progress.
func (p *oldProgram) reserve(key string) error {
	const script = `
		local made = redis.call('SETNX', KEYS[2], 'record')
		local added = redis.pcall('ZADD', KEYS[1], 1, KEYS[2])
		if type(added) == 'table' then
			redis.call('DEL', KEYS[2])
		end
		return added`
	index := p.prefix + ":{000}:p"
	return p.client.Do(p.Context(), p.client.B().Eval().Script(script).Numkeys(2).
		Key(index, p.prefix+":{000}:r:"+key).Build()).Error()
}

// settle ends a record of it, which stays for a while.
func (p *oldProgram) settle(key string) {
	record, index := p.prefix+":{000}:r:"+key, p.prefix+":{000}:p"
	must(p, p.client.Do(p.Context(), p.client.B().Zrem().Key(index).Member(record).Build()).Error())
}

// gone lets what it has made expire.
func (p *oldProgram) gone(key string) {
	must(p, p.client.Do(p.Context(), p.client.B().Del().Key(p.prefix+":{000}:r:"+key).Build()).Error())
}

// open opens a store of today beside it.
func (p *oldProgram) open() error {
	quiet := WithLogger(slog.New(slog.NewTextHandler(io.Discard, nil)))
	s, err := Open(p.Context(), p.url, WithPrefix(p.prefix), quiet)
	if err == nil {
		err = s.Close()
	}
	return err
}

// TestOldProgramIsRefused: programs that would not find each other's records do not run beside each other (I1).
func TestOldProgramIsRefused(t *testing.T) {
	t.Parallel()
	server := servers.Redis(t)
	old := newOldProgram(t, server.URL(), server.Prefix(t))
	must(t, old.reserve("one"))
	if err := old.open(); !errors.Is(err, errOldRecords) {
		t.Errorf("beside an operation in progress of an old program: %v", err)
	}
	old.settle("one")
	if err := old.open(); !errors.Is(err, errOldRecords) {
		t.Errorf("beside an answer of an old program: %v", err)
	}
	if err := old.reserve("two"); err != nil {
		t.Errorf("the old program is kept out by one that did not open: %v", err)
	}
	old.settle("two")
	old.gone("one")
	old.gone("two")
	for range 2 {
		if err := old.open(); err != nil {
			t.Errorf("after the old program's records are gone: %v", err)
		}
		if err := old.reserve("three"); err == nil || !strings.Contains(err.Error(), "WRONGTYPE") {
			t.Errorf("the old program makes a record beside the new one: %v", err)
		}
	}
}

// TestOldProgramInTheMiddle: an old program makes records while new ones open. Either it is refused from some moment on, or
// they are.
func TestOldProgramInTheMiddle(t *testing.T) {
	t.Parallel()
	server := servers.Redis(t)
	for round := range 20 {
		old := newOldProgram(t, server.URL(), server.Prefix(t))
		var made, opened [4]bool
		var running sync.WaitGroup
		for i := range made {
			running.Go(func() {
				key := fmt.Sprint(round, i)
				if made[i] = old.reserve(key) == nil; made[i] {
					old.settle(key)
				}
			})
			running.Go(func() { opened[i] = old.open() == nil })
		}
		running.Wait()
		anyMade := made[0] || made[1] || made[2] || made[3]
		if anyOpened := opened[0] || opened[1] || opened[2] || opened[3]; anyMade && anyOpened {
			t.Fatalf("an old program made %v while new ones opened: %v", made, opened)
		}
	}
}

// TestNewerFormat: a program does not open what a newer one has written.
func TestNewerFormat(t *testing.T) {
	t.Parallel()
	server := servers.Redis(t)
	p := newOldProgram(t, server.URL(), server.Prefix(t))
	must(t, p.client.Do(t.Context(), p.client.B().Sadd().Key(p.prefix+":{000}:p").Member("format 3").Build()).Error())
	if err := p.open(); err == nil || !strings.Contains(err.Error(), "format 3") {
		t.Errorf("records of a newer format are opened: %v", err)
	}
}
