package redis

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/onceward/onceward/store"
	"github.com/redis/rueidis"
)

var _ store.Lister = (*Store)(nil)

const (
	// scanCount is how many keys the server checks in one step of a scan.
	scanCount = 500
	// countStep is how many keys it counts in one step, for well under a millisecond: other calls are processed in
	// between.
	countStep = 200
	// wholeRecords is how many complete records are read at once. They may be large, and delay other calls.
	wholeRecords = 16
)

// List implements [store.Lister]. Records in progress and unknown records are found by the indexes. Settled records are
// in no index: for a filter that may select them, each page is a scan of all keys of the database, which does not block
// the server but takes time. The order is by bucket, and within a bucket by hash.
func (s *Store) List(ctx context.Context, f store.Filter) ([]store.Record, error) {
	limit := store.MaxPage
	if f.Limit > 0 {
		limit = min(limit, f.Limit)
	}
	now, err := s.clock(ctx)
	if err != nil {
		return nil, err
	}
	var after place
	if f.After != (store.ID{}) {
		after = s.names.place(f.After)
	}
	// The caller takes a short page for the last one. So records that are gone when they are read are replaced by other
	// records.
	for page := []store.Record(nil); ; {
		chosen := &chosen{filter: f, now: now, limit: limit - len(page) + spare, after: after}
		switch index := indexFor(f.State); {
		case index != indexNone && f.Due:
			err = s.listOpen(ctx, chosen, index)
		case index != indexNone:
			err = s.undisturbed(ctx, func([]rueidis.Client) error { return s.listOpen(ctx, chosen, index) })
		default:
			err = s.scan(ctx, func(places []place) error { return s.choose(ctx, chosen, places, indexNone) })
		}
		if err != nil {
			return nil, err
		}
		some, err := s.summaries(ctx, chosen)
		if err != nil {
			return nil, err
		}
		page = append(page, some...)
		if len(page) >= limit || len(chosen.places) < chosen.limit {
			return page[:min(len(page), limit)], nil
		}
		after = chosen.places[len(chosen.places)-1]
	}
}

// spare is how many more places are selected than requested, because some may be gone when they are read.
const spare = 16

// indexFor returns the index that contains all records in a state, if there is one.
func indexFor(state store.State) int { return indexOf(&store.Record{State: state}) }

// chosen gathers the first records after a place that a filter selects.
type chosen struct {
	filter store.Filter
	now    time.Time
	limit  int
	after  place

	places []place
}

func comparePlaces(a, b place) int {
	return cmp.Or(cmp.Compare(a.number, b.number), strings.Compare(a.key, b.key))
}

// wants reports whether a record at a place may be among the listed ones, as far as the place shows.
func (c *chosen) wants(at place) bool {
	if c.after.bucket != nil && comparePlaces(at, c.after) <= 0 {
		return false
	}
	return len(c.places) < c.limit || comparePlaces(at, c.places[c.limit-1]) < 0
}

// matches reports whether a filter selects a record. A record that cannot be read is selected by its state, if that is
// known.
func (c *chosen) matches(v *value) bool {
	return v.State != store.StateNone && (c.filter.State == store.StateNone || v.State == c.filter.State) &&
		(c.filter.Scope == "" || v.Scope == c.filter.Scope) &&
		(c.filter.Operation == "" || v.Operation == c.filter.Operation) &&
		(!c.filter.Due || !v.Due().After(c.now))
}

// add adds a place to the first ones.
func (c *chosen) add(at place) {
	i, known := slices.BinarySearchFunc(c.places, at, comparePlaces)
	if known {
		return // a scan may meet a key twice
	}
	c.places = slices.Insert(c.places, i, at)
	c.places = c.places[:min(len(c.places), c.limit)]
}

// listOpen selects among the entries of an index, some buckets at a time, until there are enough.
func (s *Store) listOpen(ctx context.Context, c *chosen, index int) error {
	first, holding := 0, s.names.holding(index)
	if c.after.bucket != nil {
		first = min(c.after.number, len(holding)-1)
	}
	until := ""
	if c.filter.Due {
		until = number(c.now.UnixMicro())
	}
	for ; first < len(holding) && len(c.places) < c.limit; first += chunk {
		w := newWalk(holding[first:min(first+chunk, len(holding))], index, until)
		for len(w.left) > 0 {
			entries, err := s.next(ctx, w, page)
			if err != nil {
				return err
			}
			if err := s.chooseEntries(ctx, c, w, entries); err != nil {
				return err
			}
		}
	}
	return nil
}

// chooseEntries selects among some entries of an index.
func (s *Store) chooseEntries(ctx context.Context, c *chosen, w *walk, entries []entry) error {
	places := make([]place, 0, len(entries))
	for _, e := range entries {
		w.pass(e)
		if at, err := s.names.placeOf(e.key); err == nil {
			places = append(places, at)
		}
	}
	slices.SortFunc(places, comparePlaces)
	for some := range slices.Chunk(places, scanCount) {
		if err := s.choose(ctx, c, some, w.index); err != nil {
			return err
		}
	}
	return nil
}

// choose reads records and adds the records that the filter selects. Entries that do not belong in the index are
// removed from it.
func (s *Store) choose(ctx context.Context, c *chosen, places []place, index int) error {
	places = slices.DeleteFunc(slices.Clone(places), func(at place) bool { return !c.wants(at) })
	found, err := s.each(ctx, places, false)
	if err != nil {
		return err
	}
	var stray []place
	for i := range places {
		if c.matches(&found[i]) {
			c.add(places[i])
		} else if index != indexNone && indexOf(&found[i].Record) != index {
			stray = append(stray, places[i])
		}
	}
	errs := make([]error, len(stray))
	each(len(stray), func(i int) { errs[i] = s.mend(ctx, stray[i], index) })
	return errors.Join(errs...)
}

// each reads the outlines of records, or the complete records. For a record that cannot be read it returns the state,
// if there is one, and the ID, if it can be read.
func (s *Store) each(ctx context.Context, places []place, whole bool) ([]value, error) {
	b := s.sender.client.B()
	commands := make([]rueidis.Completed, len(places))
	for i, at := range places {
		if whole {
			commands[i] = b.Get().Key(at.key).Build()
		} else {
			commands[i] = b.Getrange().Key(at.key).Start(0).End(outlineSize - 1).Build()
		}
	}
	values := make([]value, len(places))
	if len(places) == 0 {
		return values, nil
	}
	for i, reply := range s.sender.ask(ctx, s.sender.client, commands...) {
		stored, err := reply.ToString()
		switch {
		case rueidis.IsRedisNil(err) || err == nil && stored == "":
			continue // the record is gone
		case err != nil:
			return nil, unavailable(err)
		case whole:
			values[i], err = decode(places[i], stored)
		default:
			d := decoder{rest: stored}
			d.outline(&values[i])
			err = d.err
		}
		if errors.Is(err, errTruncated) && !whole && len(stored) == outlineSize { // its ID is very long
			long, err := s.each(ctx, places[i:i+1], true)
			if err != nil {
				return nil, err
			}
			values[i] = long[0]
		} else if err != nil {
			values[i] = unreadable(stored, err)
		}
	}
	return values, nil
}

// unreadable returns the value shown for a record that cannot be read: its state and its ID, if possible.
func unreadable(stored string, err error) value {
	v := value{Record: store.Record{LastError: err.Error()}}
	if len(stored) > headSize && stored[0] == format {
		v.State = store.State(stored[1])
		d := decoder{rest: stored[headSize:]}
		v.ID = d.id()
	}
	return v
}

// summaries reads the selected records. A record that has changed since, so that the filter no longer selects it, is
// left out.
func (s *Store) summaries(ctx context.Context, c *chosen) ([]store.Record, error) {
	var records []store.Record
	for places := range slices.Chunk(c.places, wholeRecords) {
		values, err := s.each(ctx, places, true)
		if err != nil {
			return nil, err
		}
		for i := range values {
			// A record without a readable ID cannot be queried.
			if rec := &values[i].Record; c.matches(&values[i]) && rec.ID != (store.ID{}) {
				rec.Data, rec.Response.Body = nil, nil
				records = append(records, *rec)
			}
		}
	}
	return records, nil
}

// scan reads all records of all servers, some at a time.
func (s *Store) scan(ctx context.Context, look func([]place) error) error {
	return s.scanKeys(ctx, kindRecord, func(keys []string) error {
		var places []place
		for _, key := range keys {
			if at, err := s.names.placeOf(key); err == nil {
				places = append(places, at)
			}
		}
		return look(places)
	})
}

// scanKeys reads all keys of a kind that has one for each ID.
func (s *Store) scanKeys(ctx context.Context, kind string, look func(keys []string) error) error {
	pattern := s.names.prefix + ":{???}:" + kind + ":*"
	return s.eachStep(ctx, func(node rueidis.Client, cursor uint64) (uint64, error) {
		step := node.B().Scan().Cursor(cursor).Match(pattern).Count(scanCount).Build()
		found, err := s.askPrimary(ctx, node, step)[0].AsScanEntry()
		if err != nil {
			return 0, unavailable(err)
		}
		return found.Cursor, look(found.Elements)
	})
}

// eachStep scans all servers: on each it makes steps from a cursor to the next one, from 0 until it is 0 again.
func (s *Store) eachStep(
	ctx context.Context, step func(node rueidis.Client, cursor uint64) (next uint64, err error),
) error {
	return s.undisturbed(ctx, func(nodes []rueidis.Client) error {
		for _, node := range nodes {
			for cursor := uint64(0); ; {
				next, err := step(node, cursor)
				if err != nil {
					return err
				}
				if cursor = next; cursor == 0 {
					break
				}
			}
		}
		return nil
	})
}

// askPrimary sends commands that a replica would answer too, although it may not have all records. A script is sent
// with them, which a replica refuses. In a cluster a replica refuses automatically.
func (s *Store) askPrimary(
	ctx context.Context, node rueidis.Client, commands ...rueidis.Completed,
) []rueidis.RedisResult {
	if s.sender.cluster {
		return s.sender.ask(ctx, node, commands...)
	}
	results := s.sender.ask(ctx, node, append(commands, clockScript.command(node.B(), true, nil, nil))...)
	results, clock := results[:len(commands)], results[len(commands)]
	if err := clock.Error(); err != nil {
		return slices.Repeat([]rueidis.RedisResult{rueidis.NewErrorResult(err)}, len(commands))
	}
	return results
}

var errDisturbed = errors.New("a server was started or replaced while its records were listed, and some may have " +
	"been left out: list them again")

// undisturbed runs a scan, and returns an error if a server was replaced, or has loaded its data again: cursors are
// then invalid, and records may have been left out.
func (s *Store) undisturbed(ctx context.Context, scan func(nodes []rueidis.Client) error) error {
	nodes, before, err := s.sender.histories(ctx)
	if err != nil {
		return err
	}
	if err := scan(nodes); err != nil {
		return err
	}
	_, after, err := s.sender.histories(ctx)
	if err == nil && !slices.Equal(before, after) {
		err = unavailable(errDisturbed)
	}
	return err
}

// histories returns the servers that hold records, and sorted identities of their data: each start of a server and each
// fail-over changes them.
func (s *sender) histories(ctx context.Context) (nodes []rueidis.Client, histories []string, err error) {
	nodes, err = s.primaries(ctx)
	for _, node := range nodes {
		text, err := s.ask(ctx, node, node.B().Info().Section("server", "replication").Build())[0].ToString()
		if err != nil {
			return nil, nil, unavailable(err)
		}
		found := info(text)
		histories = append(histories, found["run_id"]+" "+found["master_replid"]+" "+found["role"])
	}
	slices.Sort(histories)
	return nodes, histories, err
}

// Stats implements [store.Lister]. It counts by a scan of all keys of the database, which does not block the server but
// takes time. The server does the counting: only unknown records and records that have lost their owner are read,
// without their answers. A settled record may be counted twice at the moment when the server shrinks its table of keys.
func (s *Store) Stats(ctx context.Context) (store.Stats, error) {
	now, err := s.clock(ctx)
	if err != nil {
		return store.Stats{}, err
	}
	c := counter{
		now:   now,
		Stats: store.Stats{Records: make(map[store.State]int64)}, seen: make(map[string]struct{}),
		pattern: s.names.prefix + ":{???}:" + kindRecord + ":" + strings.Repeat("?", hashSize),
	}
	err = s.eachStep(ctx, func(node rueidis.Client, cursor uint64) (uint64, error) {
		return s.countSome(ctx, &c, node, cursor)
	})
	if err != nil {
		return store.Stats{}, err
	}
	return c.Stats, nil
}

// counter counts the records of a scan.
type counter struct {
	store.Stats
	now     time.Time           // the servers' clock, by which leases end
	pattern string              // of their names
	seen    map[string]struct{} // the records that were read: a scan may return a key twice
}

// countSome counts the records of one step of a scan, and reads the ones that the server could not count.
func (s *Store) countSome(ctx context.Context, c *counter, node rueidis.Client, cursor uint64) (uint64, error) {
	args := []string{strconv.FormatUint(cursor, 10), c.pattern, number(countStep), number(c.now.UnixMicro())}
	step := countScript.command(node.B(), true, nil, args)
	found, err := s.sender.ask(ctx, node, step)[0].ToArray()
	if err != nil {
		return 0, unavailable(err)
	}
	if len(found) != 3 {
		return 0, unexpected(nil)
	}
	next, err1 := found[0].AsUint64()
	counts, err2 := found[1].AsIntSlice()
	others, err3 := found[2].AsStrSlice()
	if err := errors.Join(err1, err2, err3); err != nil {
		return 0, unexpected(err)
	}
	for state, n := range counts {
		if state != int(store.StateNone) && n > 0 {
			c.Records[store.State(state)] += n
		}
	}
	return next, s.countOthers(ctx, c, others)
}

// countOthers counts the records with these names by their outlines.
func (s *Store) countOthers(ctx context.Context, c *counter, names []string) error {
	var places []place
	for _, name := range names {
		if _, twice := c.seen[name]; twice {
			continue
		}
		c.seen[name] = struct{}{}
		if at, err := s.names.placeOf(name); err == nil {
			places = append(places, at)
		}
	}
	values, err := s.each(ctx, places, false)
	for i := range values {
		if values[i].State != store.StateNone {
			c.Count(&values[i].Record, c.now)
		}
	}
	return err
}
