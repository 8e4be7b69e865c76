-- The statements of the SQLite store, each after its name. sqlite.py loads them.

-- name: schema
CREATE TABLE records (
    key TEXT PRIMARY KEY NOT NULL, counter INTEGER NOT NULL, data BLOB NOT NULL
);
CREATE TABLE log (
    entry INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL,
    transaction_id TEXT NOT NULL, time REAL NOT NULL, written_at REAL NOT NULL,
    customer_key TEXT NOT NULL, customer_counter INTEGER NOT NULL,
    belief_updated INTEGER NOT NULL, content BLOB NOT NULL
);
CREATE INDEX log_by_customer ON log (customer_key, customer_counter, transaction_id);
CREATE INDEX log_by_time ON log (written_at);
CREATE INDEX log_by_id ON log (transaction_id, customer_key) WHERE kind = 'score';
CREATE TABLE log_counterparties (
    entry INTEGER NOT NULL REFERENCES log ON DELETE CASCADE, place INTEGER NOT NULL,
    key TEXT NOT NULL, counter INTEGER NOT NULL, PRIMARY KEY (entry, place)
) WITHOUT ROWID;
CREATE INDEX log_by_counterparty ON log_counterparties (key, counter);
CREATE TABLE write_check (id INTEGER PRIMARY KEY, content BLOB NOT NULL);

-- name: settings
PRAGMA cache_size = -32768;  -- in KB
PRAGMA journal_size_limit = 67108864;
PRAGMA wal_autocheckpoint = 2000;  -- pages. One that was written several times is copied once
PRAGMA temp_store = MEMORY;
PRAGMA foreign_keys = ON;
PRAGMA secure_delete = ON;  -- always, not only for an erasure: pages move and rows are replaced

-- name: set_record
INSERT INTO records VALUES (?, ?, ?)
    ON CONFLICT (key) DO UPDATE SET counter = excluded.counter, data = excluded.data;

-- name: add_entry
INSERT INTO log VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: add_counterparty
INSERT INTO log_counterparties VALUES (?, ?, ?, ?);

-- name: read_log
SELECT * FROM log WHERE entry > ? ORDER BY entry LIMIT ?;

-- name: read_history
-- Each side follows its index and ends at the limit, so that no long history is sorted.
SELECT
    entry, kind, transaction_id, time, written_at, customer_key, customer_counter,
    belief_updated, content
FROM (
    SELECT * FROM (
        SELECT *, customer_counter AS counter FROM log
        WHERE customer_key = :key AND (time <= :until OR typeof(time) <> 'real')
        AND belief_updated >= :belief_updated
        ORDER BY customer_counter DESC, entry DESC LIMIT :limit
    )
    UNION ALL SELECT * FROM (
        SELECT log.*, own.counter
        FROM log_counterparties AS own CROSS JOIN log ON log.entry = own.entry
        WHERE key = :key AND (time <= :until OR typeof(time) <> 'real')
        AND belief_updated >= :belief_updated
        ORDER BY own.counter DESC, own.entry DESC LIMIT :limit
    )
) ORDER BY counter DESC, entry DESC LIMIT :limit;

-- name: find_customers
SELECT DISTINCT customer_key FROM log
WHERE transaction_id = ? AND kind = 'score' ORDER BY customer_key LIMIT ?;

-- name: delete_oldest
DELETE FROM log WHERE entry IN (
    SELECT entry FROM log WHERE written_at < ? ORDER BY written_at, entry LIMIT ?
);

-- name: delete_party
DELETE FROM log WHERE entry IN (
    SELECT entry FROM (
        SELECT entry, customer_counter AS counter FROM log WHERE customer_key = :key
        UNION ALL SELECT entry, counter FROM log_counterparties WHERE key = :key
    ) ORDER BY counter, entry LIMIT :limit
);

-- name: check_write
INSERT OR REPLACE INTO write_check VALUES (1, zeroblob(65536));
