package redis

import (
	"context"
	"crypto/sha256"
	"time"

	"github.com/onceward/onceward/store"
)

// Store also implements these interfaces.
var (
	_ store.Finder   = (*Store)(nil)
	_ store.Retainer = (*Store)(nil)
)

// mostAlike is how many records with one provider's id are read: the ones that are kept for the longest time.
const mostAlike = 100

// providerKey returns the key of the index of a provider's id.
func (n *names) providerKey(providerID string) string {
	sum := sha256.Sum256([]byte(providerID))
	key, _ := n.named(kindProvider, sum[:hashSize])
	return key
}

// noteProvider records in a cluster, before a record is stored, which provider's id leads to it. The record and its
// entry are in different slots: an entry may lead to a record that does not have the id, which is detected when the
// record is read, but every record with the id has an entry. The entry lasts as long as the record. On a single server
// the script that stores the record does this.
func (s *Store) noteProvider(ctx context.Context, at place, now time.Time, v *value) error {
	if v.ProviderID == "" || !s.names.cluster {
		return nil
	}
	_, err := s.run(ctx, providerScript, []string{s.names.providerKey(v.ProviderID)}, at.hash(), v.keptUntil(now))
	return err
}

// keptUntil returns until when the server keeps a value, in milliseconds since 1970.
func (v *value) keptUntil(now time.Time) string {
	if ttl := v.timeToLive(now); ttl > 0 {
		return number(now.UnixMilli() + ttl)
	}
	return "+inf"
}

// dropProvider removes the entry of a provider's id that a record no longer has. If this fails, the entry stays, and
// has no effect.
func (s *Store) dropProvider(ctx context.Context, at place, before, after *value) {
	if before.ProviderID == "" || before.ProviderID == after.ProviderID {
		return
	}
	client := s.sender.client
	s.sender.ask(ctx, client, client.B().Zrem().Key(s.names.providerKey(before.ProviderID)).Member(at.hash()).Build())
}

// FindHash implements [store.Finder].
func (s *Store) FindHash(ctx context.Context, hash string) (store.Record, error) {
	wanted, err := store.ParseHash(hash)
	if err != nil {
		return store.Record{}, err
	}
	at := s.names.placeOfHash(wanted)
	found, err := s.look(ctx, at)
	if err != nil {
		return store.Record{}, err
	}
	v, err := decode(at, found.stored)
	if err != nil {
		v, err = unreadable(found.stored, err), nil
	}
	if v.State == store.StateNone && v.LastError == "" {
		err = store.ErrNotFound
	}
	v.Data, v.Response.Body = nil, nil
	return v.Record, err
}

// FindProviderID implements [store.Finder].
func (s *Store) FindProviderID(ctx context.Context, providerID string) ([]store.Record, error) {
	if err := ctx.Err(); err != nil {
		return nil, unavailable(err)
	}
	client := s.sender.client
	alike := client.B().Zrange().Key(s.names.providerKey(providerID)).Min("0").Max(number(mostAlike - 1)).Rev().Build()
	hashes, err := s.askPrimary(ctx, client, alike)[0].AsStrSlice()
	if err != nil {
		return nil, unavailable(err)
	}
	places := make([]place, 0, len(hashes))
	for _, hash := range hashes {
		if len(hash) == hashSize {
			places = append(places, s.names.placeOfHash([hashSize]byte([]byte(hash))))
		}
	}
	var found []store.Record
	for len(places) > 0 {
		some := places[:min(len(places), wholeRecords)]
		places = places[len(some):]
		values, err := s.each(ctx, some, true)
		if err != nil {
			return nil, err
		}
		for i := range values {
			if rec := &values[i].Record; rec.ProviderID == providerID && providerID != "" {
				rec.Data, rec.Response.Body = nil, nil
				found = append(found, *rec)
			}
		}
	}
	return store.Newest(found), nil
}
