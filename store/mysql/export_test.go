package mysql

import "strconv"

// Spread makes each call use a connection of its own, to each host of the URL in turn.
func Spread(o *options) { o.spread = true }

// SetTime makes the clock of a store stand still at a moment, in microseconds since 1970.
func (s *Store) SetTime(at int64) { s.setClock(strconv.FormatInt(at, 10)) }
