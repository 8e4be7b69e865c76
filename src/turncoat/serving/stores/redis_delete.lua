-- Deletes entries. Checks the type of every key first.
-- KEYS: the log, the log by time, the log by id, the histories of the entries' parties. To erase a
-- party, its history is the first of these and its record comes last.
-- ARGV: 'erase' or '', then entry ids. Returns how many entries were deleted, and 1 if the party
-- is erased: its history is empty, so its record was deleted too.
local is_erasure = ARGV[1] == 'erase'
local n_sets = is_erasure and #KEYS - 1 or #KEYS
redis.call('XLEN', KEYS[1])
for i = 2, n_sets do redis.call('ZCARD', KEYS[i]) end
local n_deleted = 0
if #ARGV > 1 then
  for i = 2, n_sets do redis.call('ZREM', KEYS[i], unpack(ARGV, 2)) end
  n_deleted = redis.call('XDEL', KEYS[1], unpack(ARGV, 2))
end
local is_erased = is_erasure and redis.call('ZCARD', KEYS[4]) == 0
if is_erased then redis.call('DEL', KEYS[#KEYS]) end
return {n_deleted, is_erased and 1 or 0}
