-- Writes the groups whose records are at their expected counters.
-- Redis does not undo what a script did before an error. So this script checks the type of every
-- key before it writes.
-- KEYS: the log, the log by time, the log by id, then the records and histories that the plan
-- refers to.
-- ARGV: the plan as JSON, then record values and entry fields. The plan has for each group:
--   records: {index of its key, text that the value must start with, index of the new value}
--   entries: {indices of its first and last field, time written, {{index of history, counter}},
--     hash of the transaction's id, or '' for a label}
-- Indices count from 1. Returns 1 for each group that was written and 0 for the others.
local plan = cjson.decode(ARGV[1])

local function check_type(key, wanted)
  local found = redis.call('TYPE', key).ok
  if found ~= wanted and found ~= 'none' then
    error({err = 'WRONGTYPE ' .. key .. ' is a ' .. found .. ', not a ' .. wanted})
  end
end

check_type(KEYS[1], 'stream')
check_type(KEYS[2], 'zset')
check_type(KEYS[3], 'zset')
local results = {}
for i, group in ipairs(plan) do
  results[i] = 1
  for _, record in ipairs(group.records) do
    local key, expected = KEYS[record[1]], record[2]
    check_type(key, 'string')
    local found = redis.call('GETRANGE', key, 0, math.max(#expected, 1) - 1)
    if found ~= expected then results[i] = 0 end
  end
  for _, entry in ipairs(group.entries) do
    for _, history in ipairs(entry[4]) do check_type(KEYS[history[1]], 'zset') end
  end
end

for i, group in ipairs(plan) do
  if results[i] == 1 then
    for _, record in ipairs(group.records) do
      redis.call('SET', KEYS[record[1]], ARGV[record[3]])
    end
    for _, entry in ipairs(group.entries) do
      local id = redis.call('XADD', KEYS[1], '*', unpack(ARGV, entry[1], entry[2]))
      redis.call('ZADD', KEYS[2], entry[3], id)
      if entry[5] ~= '' then redis.call('ZADD', KEYS[3], entry[5], id) end
      for _, history in ipairs(entry[4]) do
        redis.call('ZADD', KEYS[history[1]], history[2], id)
      end
    end
  end
end
return results
