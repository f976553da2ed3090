#!lua flags=allow-oom
-- Register a worker: it resumes its epoch, or gets a new one and loses the attempts that it had before.
-- Arguments: fence, lease_ms, keep_ms, most workers, {name, instance, spec JSON, api, connection, resume epoch, id of the
--   key that it joined with or '', 1 if the key may take any name, UUIDs of its devices}
-- Answers {'resumed' | 'new' | 'taken' | 'full' | 'bound' | 'owned' | 'device', epoch, UUID of the device that another
--   worker has, and who stands in the way: the worker that the key is bound to | the key that owns the name | that worker}
local fence, lease_ms, keep_ms, most, hello = ARG[1], ARG[2], ARG[3], ARG[4], ARG[5]
local name, instance = hello[1], hello[2]
local key = P .. 'w:' .. name
local by, takes_any, uuids = hello[7], hello[8] == 1, hello[9]
local row = redis.call('HMGET', key, 'epoch', 'instance', 'state', 'connection', 'joined_with')
local lease = tonumber(redis.call('ZSCORE', P .. 'leases', name) or 0)

local function refuse(kind, detail, other) return answer(fence, {kind, 0, detail or '', other or ''}) end

-- A key of an older version has no field `worker`; it may be used for any name, as those of '*' and from settings may.
local bound = by ~= '' and redis.call('HGET', P .. 'k:' .. by, 'worker')

-- Keys from settings have no row.
local function is_valid(id)
  if string.sub(id, 1, 9) == 'bootstrap' then return true end
  local expires, revoked = unpack(redis.call('HMGET', P .. 'k:' .. id, 'expires', 'revoked'), 1, 2)
  return revoked == '0' and (expires == '0' or tonumber(expires) > NOW)
end

local function bind_key()
  if bound == '' then
    redis.call('HSET', P .. 'k:' .. by, 'worker', name)
    redis.call('INCR', P .. 'keys:version')
    redis.call('PUBLISH', P .. 'keys', '')
  end
end

-- Return the worker that has this device, if it is another one and is there.
local function has_device(uuid)
  local other = redis.call('HGET', P .. 'devices:worker', uuid)
  local state = other and other ~= name and redis.call('HGET', P .. 'w:' .. other, 'state')
  return (state == 'online' or state == 'suspect') and other or nil
end

-- A worker that resumes may name other devices than before, but takes none from another.
local function note_devices()
  release_devices(name)
  for _, uuid in ipairs(uuids) do
    if not has_device(uuid) then redis.call('HSET', P .. 'devices:worker', uuid, name) end
  end
  redis.call('HSET', key, 'uuids', #uuids > 0 and cjson.encode(uuids) or '')
end

-- Return the UUID of a device that another worker has, and that worker.
local function device_elsewhere()
  for _, uuid in ipairs(uuids) do
    local other = has_device(uuid)
    if other then return uuid, other end
  end
end

local function greet(kind, epoch)
  bind_key()
  note_devices()
  redis.call('HSET', key, 'name', name, 'epoch', text(epoch), 'instance', instance, 'state', 'online', 'spec', hello[3],
    'api', hello[4], 'connection', hello[5], 'joined_with', by, 'seen', text(NOW))
  redis.call('HSETNX', key, 'registered', text(NOW))
  redis.call('ZADD', P .. 'leases', NOW + lease_ms, name)
  redis.call('SADD', P .. 'workers', name)
  tell_worker(name)
  if kind == 'new' then emit_worker('worker_registered', name, 'online')
  elseif row[3] ~= 'online' then emit_worker('worker_status_changed', name, 'online', 'it is back') end
  return answer(fence, {kind, epoch, '', ''})
end

if bound and bound ~= '' and bound ~= '*' and bound ~= name then return refuse('bound', '', bound) end
local owner = row[5] or ''
if owner ~= '' and by ~= '' and owner ~= by and bound ~= name and not takes_any and is_valid(owner) then
  return refuse('owned', '', owner)
end

local present = row[3] == 'online' or row[3] == 'suspect'
if present and row[2] == instance and row[1] == text(hello[6]) then return greet('resumed', hello[6]) end
if present and row[2] ~= instance and row[4] ~= '' and lease > NOW then return refuse('taken') end
if not present and redis.call('ZCARD', P .. 'leases') >= most then return refuse('full') end
local uuid, other = device_elsewhere()
if uuid then return refuse('device', uuid, other) end
if present then lose(name, 'worker ' .. name .. ' started anew', keep_ms) end
set_alerts(name, {})
set_models(name, {})
redis.call('HDEL', key, 'report', 'leaving')
close_circuit(name)
return greet('new', redis.call('INCR', P .. 'epoch'))
