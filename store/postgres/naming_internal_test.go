package postgres

import (
	"testing"

	"github.com/onceward/onceward/store"
)

// TestKeyTime holds what is taken for the time of a key to what was released: names are stored, and a key that gets
// another one is executed again.
func TestKeyTime(t *testing.T) {
	t.Parallel()
	const none = 0
	for key, want := range map[string]uint32{
		"0190163d-8694-739b-aea5-966c26f8ad91":          0x0190163d,
		"0190163D-8694-739B-AEA5-966C26F8AD91":          0x0190163d,
		"payment/0190163d-8694-739b-aea5-966c26f8ad91":  0x0190163d,
		"payment-0190163d-8694-739b-aea5-966c26f8ad91":  0x0190163d,
		"018c0000-0000-7000-8000-000000000000":          0x018c0000, // the first moment
		"024bffff-ffff-7fff-bfff-ffffffffffff":          0x024bffff, // the last one
		"018bffff-ffff-7fff-bfff-ffffffffffff":          none,
		"024c0000-0000-7000-8000-000000000000":          none,
		"0190163d-8694-439b-aea5-966c26f8ad91":          none, // version 4
		"0190163d-8694-139b-aea5-966c26f8ad91":          none,
		"0190163d_8694_739b_aea5_966c26f8ad91":          none,
		"0190163d-8694-739b-aea5-966c26f8ad9g":          none,
		"0190163d-8694-739b-aea5-966c26f8ad9":           none,
		"0190163d8694739baea5966c26f8ad91":              none,
		"x0190163d-8694-739b-aea5-966c26f8ad91":         none,
		"0190163d-8694-739b-aea5-966c26f8ad91/1":        none,
		"01J0B3V1MMECXTXARPCKKGYBCH":                    0x0190163d,
		"01j0b3v1mmecxtxarpckkgybch":                    0x0190163d,
		"order_01j0b3v1mmecxtxarpckkgybch":              0x0190163d, // a TypeID
		"order_01j0b3v1mmecxtxarpckkgybcu":              none,       // no letter of a ULID
		"order01j0b3v1mmecxtxarpckkgybch":               none,
		"01J0B3V1MMECXTXARPCKKGYBC":                     none,
		"81J0B3V1MMECXTXARPCKKGYBCH":                    none, // more bits than a time has
		"7ZZZZZZZZZZZZZZZZZZZZZZZZZ":                    none,
		"00000000000000000000000000":                    none,
		"":                                              none,
		"order-1":                                       none,
		"\xff\xfe":                                      none,
		"\xff0190163d-8694-739b-aea5-966c26f8ad91":      0x0190163d,
		"0190163d-8694-739b-aea5-966c26f8ad91\x00":      none,
		"01J0B3V1MMECXTXARPCKKGYBCH" + "-" + "not-that": none,
	} {
		if at, ok := keyTime(key); ok != (want != none) || ok && at != want {
			t.Errorf("the time of %q is (%#x, %t), want %#x", key, at, ok, want)
		}
	}
}

// TestLocksOfOneTime: the keys of one moment do not share what they have in common.
func TestLocksOfOneTime(t *testing.T) {
	t.Parallel()
	s := &Store{naming: newNaming(nil, formOrdered, "tables")}
	keys := make(map[int64]bool)
	for _, last := range "0123456789abcdef" {
		id := store.ID{Key: "0190163d-8694-739b-aea5-966c26f8ad9" + string(last)}
		keys[s.lockKey(s.hash(id))] = true
		if name := s.RecordID(id); name[:8] != "0190163d" || name[9:13] != id.Hash()[8:12] || name[24:] != id.Hash()[20:] {
			t.Errorf("the record of the hash %s is named %s", id.Hash(), name)
		}
	}
	for key := range keys {
		for other := range keys {
			if key != other && key>>32 == other>>32 {
				t.Errorf("two locks of one moment begin alike: %x, %x", key, other)
			}
		}
	}
	if len(keys) != 16 {
		t.Errorf("16 keys have %d locks", len(keys))
	}
}
