package redis

import "time"

// Patience sets how long a store waits for its servers: for a connection, for a reply, and while a connection is silent.
func Patience(d time.Duration) Option {
	return func(o *options) { o.patience = patience{silence: d, dial: d, call: d} }
}

// UsualPatience has a store wait as those of programs do.
func UsualPatience() Option { return func(o *options) { o.patience = usualPatience() } }
