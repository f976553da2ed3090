#!lua flags=allow-oom
-- Take callbacks that are due. Each is due again after `for_ms` unless its result is stored by then.
-- Arguments: most callbacks, for_ms, hosts that may get no or only some more now {host, how many, ...}, the same for
--   every other host, ms after which a callback is looked at again whose host may get no more
-- Answers {{id, earlier tries, row {field, value, ...}} each, 1 if more may be due}; after MOST_BYTES of rows the rest
--   waits for the next call
local most, for_ms, of_host, of_others, pause_ms = ARG[1], ARG[2], ARG[3], ARG[4], ARG[5]
local MOST_BYTES, MOST_READ = 4 * 1024 * 1024, 500
local left, found, bytes, read = {}, {}, 0, 0
for at = 1, #of_host, 2 do left[of_host[at]] = of_host[at + 1] end

local due = redis.call('ZRANGEBYSCORE', P .. 'callbacks', '-inf', NOW, 'LIMIT', 0, MOST_READ)
for _, id in ipairs(due) do
  if #found >= most or bytes >= MOST_BYTES then break end
  read = read + 1
  local key = P .. 't:' .. id
  local spec = redis.call('HGET', key, 'spec')
  local url = spec and callback_of(spec) or ''
  local host = string.lower(string.match(url, '^%w+://([^/"?#]*)') or '')
  left[host] = left[host] or of_others
  if not spec then
    redis.call('ZREM', P .. 'callbacks', id)
  elseif left[host] <= 0 then
    redis.call('ZADD', P .. 'callbacks', NOW + pause_ms, id) -- the callbacks of other hosts go first
  else
    left[host] = left[host] - 1
    redis.call('ZADD', P .. 'callbacks', NOW + for_ms, id)
    local row, size = shown(key)
    bytes = bytes + size
    found[#found + 1] = {id, redis.call('HINCRBY', key, 'callback_tries', 1) - 1, row}
  end
end
return cmsgpack.pack({{}, {found, (read < #due or #due == MOST_READ) and 1 or 0}})
