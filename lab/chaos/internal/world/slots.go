package world

import (
	"context"
	"fmt"
	"hash/crc32"
	"strings"

	"github.com/onceward/onceward/lab/chaos/internal/history"
	"github.com/onceward/onceward/store"
)

// A cluster is spread over slots by the part of a key that is in braces: the store's buckets, of which each holds all
// about its operations.
const (
	slotCount   = 16384
	bucketCount = 1024
)

func bucketTag(bucket uint32) string { return fmt.Sprintf("%03x", bucket) }

// slotOf is where a cluster keeps all about an operation.
func slotOf(id store.ID) int {
	return tagSlot(bucketTag(crc32.ChecksumIEEE(id.AppendBinary(nil)) % bucketCount))
}

// tagSlot is the slot of a tag: its CRC16, as Redis Cluster has it.
func tagSlot(tag string) int {
	var crc uint16
	for _, b := range []byte(tag) {
		crc ^= uint16(b) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
	}
	return int(crc) % slotCount
}

// drawSlot draws one of the slots that hold records.
func (w *World) drawSlot() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return tagSlot(bucketTag(uint32(w.random.IntN(bucketCount))))
}

// noteFailOver keeps that a replica took over.
func (w *World) noteFailOver(f history.FailOver) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.failOvers = append(w.failOvers, f)
}

// harvestSlots notes where all about each operation is, and who took over from whom. The slots are those that the store
// uses, or nothing could be traced to a fail-over: each record that is there is looked for in its slot.
func (c *cluster) harvestSlots(ctx context.Context, run *history.Run) error {
	slots := make(map[store.ID]int)
	for i := range run.Attempts {
		id := store.ID{Scope: run.Attempts[i].Scope, Key: run.Attempts[i].Key}
		if _, known := slots[id]; !known {
			slots[id] = slotOf(id)
			run.Slots = append(run.Slots, history.Slot{Scope: id.Scope, Key: id.Key, Slot: slots[id]})
		}
	}
	for i := range run.Records {
		id := store.ID{Scope: run.Records[i].Scope, Key: run.Records[i].Key}
		if err := c.verifySlot(ctx, id, slots[id]); err != nil {
			return err
		}
	}
	c.world.mu.Lock()
	defer c.world.mu.Unlock()
	run.FailOvers = append(run.FailOvers, c.world.failOvers...)
	return nil
}

// verifySlot looks for a record among the keys of a slot.
func (c *cluster) verifySlot(ctx context.Context, id store.ID, slot int) error {
	primary, err := c.servers.Primary(ctx, slot)
	if err != nil {
		return err
	}
	reply, err := primary.Do(ctx, "CLUSTER", "GETKEYSINSLOT", fmt.Sprint(slot), "10000")
	if err != nil {
		return err
	}
	keys, _ := reply.([]any)
	for _, key := range keys {
		if text, _ := key.(string); strings.HasSuffix(text, string(id.AppendBinary(nil))) {
			return nil
		}
	}
	return fmt.Errorf("the record of %s/%s is not in slot %d: the store spreads its records in another way",
		id.Scope, id.Key, slot)
}
