package world

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/lab/chaos/internal/history"
)

// tiered is a PostgreSQL server with a Redis in front of it that keeps nothing on disk by itself.
type tiered struct {
	*server
	cache *redis
}

func openTiered(ctx context.Context, w *World) (database, error) {
	durable, err := openServer(ctx, w)
	if err != nil {
		return nil, err
	}
	t := &tiered{server: durable.(*server), cache: &redis{world: w}}
	if t.cache.server, err = servers.StartRedis(ctx, "appendonly no"); err != nil {
		return nil, errors.Join(err, durable.close())
	}
	if t.cache.wire, err = w.network.lay("front", t.cache.server.Addr()); err != nil {
		return nil, errors.Join(err, t.close())
	}
	return t, nil
}

func (t *tiered) front() string { return t.cache.url() }

func (t *tiered) close() error { return errors.Join(t.cache.close(), t.server.close()) }

func (t *tiered) faults() []Fault {
	front := append([]Fault{
		{"front-kill", func(ctx context.Context) error { return t.lose(ctx, t.world.die) }},
		{"front-empty", func(ctx context.Context) error {
			return t.lose(ctx, func(ctx context.Context, _ machine) error {
				_, err := t.cache.server.Do(ctx, "FLUSHALL")
				return err
			})
		}},
		{"front-restore", t.restore},
		{"front-pause", func(ctx context.Context) error { return t.cache.alone(ctx, t.world.sleep) }},
	}, t.world.wireFaults("front", t.cache.wire)...)
	return append(t.server.faults(), front...)
}

// lose does something by which the front loses what it holds, and notes when.
func (t *tiered) lose(ctx context.Context, do func(context.Context, machine) error) error {
	return t.cache.alone(ctx, func(ctx context.Context, m machine) error {
		loss := history.FrontLoss{Began: history.Now()}
		err := do(ctx, m)
		loss.Ended = history.Now()
		t.world.mu.Lock()
		defer t.world.mu.Unlock()
		t.world.frontLosses = append(t.world.frontLosses, loss)
		return err
	})
}

// restore has the front begin again with what it held a while ago.
func (t *tiered) restore(ctx context.Context) error {
	return t.lose(ctx, func(ctx context.Context, m machine) error {
		if _, err := t.cache.server.Do(ctx, "SAVE"); err != nil {
			return err
		}
		pause(ctx, t.world.between(300*time.Millisecond, history.FrontAge))
		if err := t.world.die(ctx, m); err != nil {
			return err
		}
		err := os.Remove(filepath.Join(t.cache.server.Dir(), "dump.rdb")) // the next time it begins without
		if errors.Is(err, fs.ErrNotExist) {
			return errors.New("the front has begun without its snapshot")
		}
		return err
	})
}

// What a front is there for, and how it fares: a run in which it was of no use proves nothing about it.
const (
	frontAsked   = "front-asked"
	frontAnswers = "front-answers"
	frontFails   = "front-fails"
	frontBust    = "front-bust"
)

// frontUses must have happened in each run, beside its faults.
var frontUses = []string{frontAnswers, frontBust}

// FrontLimit is how long that may take when the faults are over.
const FrontLimit = 2 * time.Minute

// FrontUsed reports whether the front was of use in this window, by the journals of the nodes. Where there is none,
// there is nothing to wait for.
func (w *World) FrontUsed() (bool, error) {
	if w.database.front() == "" {
		return true, nil
	}
	journals, err := w.Journals()
	if err != nil {
		return false, err
	}
	return frontUsed(journals)
}

// frontUsed reports whether journals have all that a front is there for.
func frontUsed(journals []string) (bool, error) {
	run, err := history.ReadWindow(journals...)
	if err != nil {
		return false, err
	}
	countFront(run)
	for _, use := range frontUses {
		if run.Faults[use] == 0 {
			return false, nil
		}
	}
	return true, nil
}

// countFront counts how often the front was asked, has answered, and was left alone since it had failed, and what
// operators removed.
func countFront(run *history.Run) {
	for i := range run.Writes {
		switch w := &run.Writes[i]; w.Call {
		case history.CallFront:
			run.Faults[frontAsked]++
			if w.Accepted {
				run.Faults[frontAnswers]++
			}
		case history.CallFrontFailed:
			run.Faults[frontFails]++
		case history.CallBust:
			run.Faults[frontBust]++
		}
	}
}
