package redis

import (
	"context"
	"log/slog"

	"github.com/redis/rueidis"
)

// Option changes a store that is being opened.
type Option func(*options)

type options struct {
	prefix string
	log    *slog.Logger
}

// WithPrefix makes all keys of the store begin so. Default: "onceward".
func WithPrefix(prefix string) Option { return func(o *options) { o.prefix = prefix } }

// WithLogger is told what an operator should know. Default: [slog.Default].
func WithLogger(log *slog.Logger) Option { return func(o *options) { o.log = log } }

// Open connects.
func Open(ctx context.Context, url string, opts ...Option) (*Store, error) {
	o := options{prefix: "onceward", log: slog.Default()}
	for _, option := range opts {
		option(&o)
	}
	config, err := rueidis.ParseURL(url)
	if err != nil {
		return nil, err
	}
	config.ForceSingleClient, config.DisableCache, config.DisableRetry = true, true, true
	config.AlwaysPipelining = true
	client, err := rueidis.NewClient(config)
	if err != nil {
		return nil, unavailable(err)
	}
	return &Store{client: client, names: newNames(o.prefix), log: o.log}, nil
}
