#!lua flags=allow-oom
-- Read all keys if they changed since the caller read them; store when some were last used.
-- Arguments: version the caller knows, used {{id, ms}, ...}
-- Answers {version, false if the caller knows it, else rows as in `key_save`, oldest first, {id, ms, ...} of keys that
--   come from settings: they have no row}
local CONFIGURED = P .. 'keys:used'
local function used(key, field, ms)
  if tonumber(redis.call('HGET', key, field) or 0) < ms then redis.call('HSET', key, field, text(ms)) end
end
for _, each in ipairs(ARG[2]) do
  local id, ms = each[1], each[2]
  if string.sub(id, 1, 9) == 'bootstrap' then
    used(CONFIGURED, id, ms)
  elseif redis.call('EXISTS', P .. 'k:' .. id) == 1 then
    used(P .. 'k:' .. id, 'used', ms)
  end
end
local version = tonumber(redis.call('GET', P .. 'keys:version') or 0)
if version == ARG[1] then return cmsgpack.pack({{}, {version, false, {}}}) end
local rows = {}
for _, id in ipairs(redis.call('ZRANGE', P .. 'keys', 0, -1)) do
  local row = redis.call('HMGET', P .. 'k:' .. id, 'digest', 'name', 'owner', 'scopes', 'created', 'expires', 'revoked',
    'used', 'by', 'limits', 'worker')
  rows[#rows + 1] = {id, row[1], row[2], row[3], row[4], tonumber(row[5]), tonumber(row[6]), tonumber(row[7]),
    tonumber(row[8]), row[9], row[10] or '', row[11] or '*'}
end
return cmsgpack.pack({{}, {version, rows, redis.call('HGETALL', CONFIGURED)}})
