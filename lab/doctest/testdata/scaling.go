package page

import (
	"crypto/sha256"
	"encoding/binary"
	"net/http"
)
