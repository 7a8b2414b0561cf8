package redis

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"time"

	"github.com/redis/rueidis"
)

// Option configures a store.
type Option func(*options)

type options struct {
	prefix   string
	log      *slog.Logger
	tls      *tls.Config
	acks     acks
	eviction bool
	readOnly bool
	syncOnly bool
	patience patience
}

// patience is how long the store waits for its servers. A test sets it, so that its result does not depend on the speed
// of the machine.
type patience struct {
	silence, dial, call time.Duration // the constants silence, dialTimeout and callTimeout
}

func usualPatience() patience {
	return patience{silence: silence, dial: dialTimeout, call: callTimeout}
}

// WithPrefix sets the beginning of all keys of the store: several stores can share a server. Letters, digits and the
// characters ". _ : -" are allowed. Default: "onceward".
func WithPrefix(prefix string) Option { return func(o *options) { o.prefix = prefix } }

// WithLogger sets the logger. Default: [slog.Default].
func WithLogger(log *slog.Logger) Option { return func(o *options) { o.log = log } }

// WithTLS sets the TLS configuration for URLs with TLS, for a private authority or a client's certificate. Default: the
// authorities that the system trusts, TLS 1.2 and later.
func WithTLS(config *tls.Config) Option { return func(o *options) { o.tls = config } }

// WithReplicas makes each write wait until n replicas have it in memory, by WAIT. If fewer have it after the timeout
// the call fails with an error that wraps [store.ErrUnavailable]: the write stays, and may or may not survive a
// fail-over.
//
// It makes it unlikely that a fail-over loses an acknowledged write, not impossible: the promoted server need not be
// one of the replicas that have it, and Redis has no consensus. It costs the round trip to the replicas in each batch
// of writes. Look-ups do not wait, nor do replays of keys that this process has seen; other replays are sent with the
// writes. Default: writes do not wait for replicas.
func WithReplicas(n int, timeout time.Duration) Option {
	return func(o *options) { o.acks.replicas, o.acks.timeout = n, timeout }
}

// WithAOFAcks makes each write wait until it is in the append-only file of the server itself and of so many replicas,
// by WAITAOF: with appendfsync everysec this takes up to a second. It needs Redis 7.2 or Valkey, and appendonly; like
// [WithReplicas] it does not make a fail-over safe. With everysec, servers before Redis 8.0 and Valkey may acknowledge
// a write that is not on the disk yet (redis/redis#13793): set appendfsync always there. Default: off.
func WithAOFAcks(replicas int, timeout time.Duration) Option {
	return func(o *options) { o.acks = acks{replicas: replicas, timeout: timeout, fsynced: true} }
}

// WithSyncReplicasOnly refuses servers without a replica to acknowledge writes, and makes each write wait for one, for
// a second, unless [WithReplicas] or [WithAOFAcks] sets how many and how long. After opening, a write fails only if too
// few replicas have it. For the limits see [WithReplicas]: if no acknowledged answer may be lost, use a database.
// Default: a warning, if there are replicas and writes do not wait for them.
func WithSyncReplicasOnly() Option { return func(o *options) { o.syncOnly = true } }

// WithEviction accepts a server that removes records when its memory is full (a maxmemory-policy other than
// noeviction). Operations whose records are removed may be executed a second time. Default: such a server is refused.
func WithEviction() Option { return func(o *options) { o.eviction = true } }

// WithReadOnly opens a store for reading: opening writes nothing. Without it, the first program that opens a prefix
// marks its format, so that programs with another format cannot create records. Default: the store is opened for
// writing.
func WithReadOnly() Option { return func(o *options) { o.readOnly = true } }

// prefixes are the allowed prefixes, which need no quoting in a pattern and do not affect the hash tag.
var prefixes = regexp.MustCompile(`^[A-Za-z0-9._:-]{1,100}$`)

func (o *options) check() error {
	switch {
	case !prefixes.MatchString(o.prefix):
		return fmt.Errorf("redis: %q is no prefix: it takes 1 to 100 letters, digits and the characters . _ : -", o.prefix)
	case o.acks.replicas < 0 || o.acks.wanted() && o.acks.timeout < time.Millisecond:
		return errors.New("redis: acknowledgements need a number of replicas and a timeout of a millisecond at least")
	case o.acks.timeout >= callTimeout:
		return fmt.Errorf("redis: a timeout of %s for acknowledgements is too long: it must be below %s", o.acks.timeout,
			callTimeout)
	case o.syncOnly && o.acks.replicas == 0:
		return errors.New("redis: WithSyncReplicasOnly needs acknowledgements of one replica at least")
	default:
		return nil
	}
}

// Open connects to a server, or to several that are one store:
//
//	redis://user:password@host:6379/0
//	redis+sentinel://user:password@host:26379,host:26379/NAME?db=0
//	redis+cluster://user:password@host:6379,host:6379
//
// With rediss in place of redis the connections use TLS. The user and password are for the servers; the parameters
// sentinel_username and sentinel_password are for the sentinels, client_name is shown by CLIENT LIST.
//
// Open reads the servers' settings. It refuses a replica, a server older than Redis 7.0, a server that evicts records
// (see [WithEviction]), and records of a format that this program does not know; it logs what a crash or a fail-over
// can lose.
func Open(ctx context.Context, url string, opts ...Option) (*Store, error) {
	o := options{prefix: "onceward", log: slog.Default(), patience: usualPatience()}
	for _, option := range opts {
		option(&o)
	}
	if o.syncOnly && !o.acks.wanted() {
		o.acks = acks{replicas: 1, timeout: time.Second}
	}
	if err := o.check(); err != nil {
		return nil, err
	}
	where, err := parseURL(url)
	if err != nil {
		return nil, err
	}
	client, err := connect(ctx, where.config(o.tls, o.patience))
	if err != nil {
		return nil, err
	}
	s := &Store{
		sender: &sender{client: client, cluster: where.mode == modeCluster, acks: o.acks, timeout: o.patience.call},
		names:  newNames(o.prefix, where.mode == modeCluster), recent: newRecent(), log: o.log,
		inspection: inspection{mode: where.mode, options: o},
	}
	if o.acks.wanted() {
		s.sender.aside = &sender{client: client, cluster: s.sender.cluster, timeout: o.patience.call}
	}
	s.Apply = s.change
	s.watcher = newWatcher(s)
	if err := s.inspect(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	if err := s.checkFormat(ctx, o.readOnly); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// connect makes a client. If its caller has left, it closes the client.
func connect(ctx context.Context, config rueidis.ClientOption) (rueidis.Client, error) {
	type made struct {
		client rueidis.Client
		err    error
	}
	done := make(chan made, 1)
	go func() {
		client, err := rueidis.NewClient(config)
		done <- made{client, err}
	}()
	select {
	case m := <-done:
		return m.client, unavailable(m.err)
	case <-ctx.Done():
		go func() {
			if m := <-done; m.err == nil {
				m.client.Close()
			}
		}()
		return nil, unavailable(ctx.Err())
	}
}
