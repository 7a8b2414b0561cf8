package onceward

import (
	"crypto/aes"
	"crypto/cipher"
	"encoding/base32"
	"encoding/hex"
	"fmt"
	"slices"

	"github.com/onceward/onceward/store"
)

// This file derives the idempotency keys that are sent to other systems. A key can be opened by those who have the
// secret: it shows the hash of the operation's ID, by which a store finds the record. It is
//
//	base32(AES_k(hash) ‖ tag)    tag = HMAC(secret, step)    k = HMAC(secret, tag)
//
// in 44 small letters and digits, because a provider takes no more than 45 characters, and another one may not tell
// letters of different cases apart. The tag has 88 bits, so that any number of steps of one operation have keys of
// their own, and each has a cipher of its own: a receiver of two steps of an operation cannot tell that they belong
// together.

// The labels of what is derived: what was derived for one purpose never equals what was derived for another. They never
// change, nor does what follows them: a provider that has seen a key must see the same one again
// (testdata/downstream-keys.json).
const (
	labelDownstreamSecret = "onceward downstream secret 2\x00"
	labelStepTag          = "onceward downstream step 2\x00"
	labelStepCipher       = "onceward downstream cipher 2\x00"
	labelFollowingKey     = "onceward following key 1\x00"
)

const (
	// stepTagSize is how many bytes of a key tell its step.
	stepTagSize = 11
	// followingKeySize is how many bytes of a keyed hash a following key shows, in hexadecimal digits.
	followingKeySize = 20
)

// keyEncoding is how keys are written.
var keyEncoding = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// downstreamSecret derives the downstream keys of the records that name it.
type downstreamSecret struct{ secretKey }

// downstreamRing derives downstream keys: with the secret that a record names, or with the current one, which is the
// first.
type downstreamRing struct{ secrets []downstreamSecret }

// newDownstreamRing derives a secret from each of those that are configured and from the namespace. So the id that a
// record keeps stands for both: after a change of the namespace its keys cannot be derived, which is better than
// deriving others.
func newDownstreamRing(c *Config) (ring downstreamRing, err error) {
	configured := slices.Concat([][]byte{c.Secret}, c.OldSecrets, c.OldDownstreamSecrets)
	if len(c.DownstreamSecret) > 0 {
		configured = slices.Insert(configured, 0, c.DownstreamSecret)
	}
	derived, err := deriveSecrets(configured, c.Namespace)
	for _, secret := range derived {
		ring.secrets = append(ring.secrets, downstreamSecret{secret})
	}
	return ring, err
}

// deriveSecrets derives a secret from each of those that are configured.
func deriveSecrets(configured [][]byte, namespace string) ([]secretKey, error) {
	message := appendField([]byte(labelDownstreamSecret), namespace)
	derived := make([][]byte, 0, len(configured))
	for _, secret := range configured {
		from, err := newSecretKey(secret)
		if err != nil {
			return nil, err
		}
		derived = append(derived, from.sum(nil, message))
	}
	return newSecretKeys(derived)
}

// current is the id of the secret that new records keep.
func (d *downstreamRing) current() uint32 { return d.secrets[0].id }

// secret finds the secret of a record. Without it no key is made up: another one would be another operation to a
// provider.
func (d *downstreamRing) secret(rec *store.Record) (*downstreamSecret, error) {
	for i := range d.secrets {
		if d.secrets[i].id == rec.DownstreamSecret {
			return &d.secrets[i], nil
		}
	}
	return nil, &store.UnreadableError{Version: rec.Version, Reason: fmt.Sprintf("its downstream keys are derived "+
		"with secret %d, which is not configured: put the secret back, into OldDownstreamSecrets or OldSecrets, "+
		"and the Namespace as it was", rec.DownstreamSecret)}
}

// key derives the key of a step of an operation.
func (d *downstreamSecret) key(id store.ID, step string) string {
	tag := d.tag(step)
	var b [aes.BlockSize + stepTagSize]byte
	hash := id.HashBytes()
	d.cipher(tag).Encrypt(b[:], hash[:])
	copy(b[aes.BlockSize:], tag)
	return keyEncoding.EncodeToString(b[:])
}

// tag returns what a key shows of its step.
func (d *downstreamSecret) tag(step string) []byte {
	return d.sum(nil, appendField([]byte(labelStepTag), step))[:stepTagSize]
}

// cipher is that of the steps with a tag.
func (d *downstreamSecret) cipher(tag []byte) cipher.Block {
	block, err := aes.NewCipher(d.sum(nil, append([]byte(labelStepCipher), tag...))[:aes.BlockSize])
	if err != nil {
		panic(err) // the size of the key is right
	}
	return block
}

// DownstreamKey is [Operation.DownstreamKey] for those who have the record but are not in its handler, such as a
// resolver that asks another system what became of it. The error wraps [ErrUnreadable]: the record's secret is not
// configured any more.
func (g *Guard) DownstreamKey(rec *store.Record, step string) (string, error) {
	secret, err := g.downstream.secret(rec)
	if err != nil {
		return "", err
	}
	return secret.key(rec.ID, step), nil
}

// OpenedKey is what a downstream key says to who has the secret that it was derived with.
type OpenedKey struct {
	// Hash is the hash of the operation's ID, as [store.ID.Hash] writes it.
	Hash string
	// Secret is the id of the secret: a record whose DownstreamSecret is another one has not sent the key.
	Secret uint32

	secret *downstreamSecret
	tag    []byte
}

// IsOf reports whether it is the key of a step of that name.
func (k *OpenedKey) IsOf(step string) bool { return slices.Equal(k.tag, k.secret.tag(step)) }

// OpenDownstreamKey says of which operation a downstream key is, so that a person who has what the other system knows
// finds the record by a [store.Finder]. There is an answer for each secret that is configured, because the key does not
// tell with which of them it was derived: at most one leads to a record. There is none for a text that is no such key.
func (g *Guard) OpenDownstreamKey(key string) (opened []OpenedKey) {
	b, err := keyEncoding.DecodeString(key)
	if err != nil || len(b) != aes.BlockSize+stepTagSize || keyEncoding.EncodeToString(b) != key {
		return nil
	}
	for i := range g.downstream.secrets {
		secret := &g.downstream.secrets[i]
		var hash [aes.BlockSize]byte
		tag := b[aes.BlockSize:]
		secret.cipher(tag).Decrypt(hash[:], b[:aes.BlockSize])
		opened = append(opened, OpenedKey{
			Hash: hex.EncodeToString(hash[:]), Secret: secret.id, secret: secret, tag: tag,
		})
	}
	return opened
}

// FollowingKey derives the downstream key of an effect that follows another one, which was sent with that key, such as
// a message that is added when another one was delivered. Those who know the first key cannot compute it.
func (g *Guard) FollowingKey(key, step string) string {
	message := appendField([]byte(labelFollowingKey), key)
	return hex.EncodeToString(g.downstream.secrets[0].sum(nil, appendField(message, step))[:followingKeySize])
}
