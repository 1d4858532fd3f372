# Messages about the vehicle: what `card` publishes and the daemon reads.
#
# Layout rule: the wire position of a field follows from the ordinals and types of ALL fields with
# lower ordinals, so every ordinal is declared, in order, also those that nobody reads any more.
# Names may change; ordinals and types may not. Structures that are only passed through are `Opaque`:
# a pointer takes one word whatever it points to.
#
# Units: m, m/s, m/s^2, rad unless the name says otherwise (`Deg`, `Ms`).

@0x8e2af1e708af8b8d;

struct Opaque {}

# 100 Hz. Car frame: x forward, y left, z up; steering and yaw positive to the left.
struct CarState {
  errors @0 :List(UInt16);            # retired
  vEgo @1 :Float32;                   # m/s, filtered
  wheelSpeeds @2 :WheelSpeeds;
  gas @3 :Float32;                    # retired
  gasPressed @4 :Bool;
  brake @5 :Float32;                  # retired
  brakePressed @6 :Bool;
  steeringAngleDeg @7 :Float32;       # degrees at the steering wheel
  steeringTorque @8 :Float32;         # driver torque, units of the car's own bus
  steeringPressed @9 :Bool;           # the driver is turning the wheel
  cruiseState @10 :CruiseState;
  buttonEvents @11 :List(ButtonEvent);
  canMonoTimes @12 :List(UInt64);     # retired
  events @13 :List(Opaque);           # retired
  gearShifter @14 :GearShifter;
  steeringRateDeg @15 :Float32;       # degrees/s
  aEgo @16 :Float32;                  # m/s^2
  vEgoRaw @17 :Float32;               # m/s, unfiltered wheel speed
  standstill @18 :Bool;
  brakeLights @19 :Bool;              # retired
  leftBlinker @20 :Bool;
  rightBlinker @21 :Bool;
  yawRate @22 :Float32;               # rad/s
  genericToggle @23 :Bool;
  doorOpen @24 :Bool;
  seatbeltUnlatched @25 :Bool;
  canValid @26 :Bool;                 # counters and checksums of the car's bus are right
  steeringTorqueEps @27 :Float32;
  clutchPressed @28 :Bool;            # retired
  steeringRateLimited @29 :Bool;      # retired
  stockAeb @30 :Bool;
  stockFcw @31 :Bool;
  espDisabled @32 :Bool;
  leftBlindspot @33 :Bool;            # something is beside the car on the left
  rightBlindspot @34 :Bool;
  steerFaultTemporary @35 :Bool;
  steerFaultPermanent @36 :Bool;
  steeringAngleOffsetDeg @37 :Float32;
  brakeHoldActive @38 :Bool;
  parkingBrake @39 :Bool;
  canTimeout @40 :Bool;
  fuelGauge @41 :Float32;             # 0..1
  accFaulted @42 :Bool;
  charging @43 :Bool;
  vEgoCluster @44 :Float32;           # m/s, as the instrument cluster shows it
  regenBraking @45 :Bool;
  engineRpm @46 :Float32;             # retired
  carFaultedNonCritical @47 :Bool;
  canErrorCounter @48 :UInt32;
  canRcvTimeout @49 :Bool;            # retired
  cumLagMs @50 :Float32;
  espActive @51 :Bool;
  vehicleSensorsInvalid @52 :Bool;
  vCruise @53 :Float32;
  vCruiseCluster @54 :Float32;
  invalidLkasSetting @55 :Bool;
  lowSpeedAlert @56 :Bool;
  buttonEnable @57 :Bool;
  steeringDisengage @58 :Bool;
  stockLkas @59 :Bool;
  blockPcmEnable @60 :Bool;
  carNotReady @61 :Bool;

  struct WheelSpeeds {                # m/s
    fl @0 :Float32;
    fr @1 :Float32;
    rl @2 :Float32;
    rr @3 :Float32;
  }

  struct CruiseState {
    enabled @0 :Bool;
    speed @1 :Float32;                # m/s
    available @2 :Bool;
    speedOffset @3 :Float32;          # retired
    standstill @4 :Bool;
    nonAdaptive @5 :Bool;
    speedCluster @6 :Float32;         # m/s
  }

  struct ButtonEvent {
    pressed @0 :Bool;
    type @1 :UInt16;                  # an enumeration upstream: 16 bits
  }

  enum GearShifter {
    unknown @0;
    park @1;
    drive @2;
    neutral @3;
    reverse @4;
    sport @5;
    low @6;
    brake @7;
    eco @8;
    manumatic @9;
  }
}

# 100 Hz: what the controllers ask of the car.
struct CarControl {
  enabled @0 :Bool;
  gas @1 :Float32;                    # retired
  brake @2 :Float32;                  # retired
  steeringTorque @3 :Float32;         # retired
  cruiseControl @4 :Opaque;
  hudControl @5 :Opaque;
  actuators @6 :Actuators;
  active @7 :Bool;                    # retired
  roll @8 :Float32;                   # retired
  pitch @9 :Float32;                  # retired
  actuatorsOutput @10 :Actuators;     # retired
  latActive @11 :Bool;                # lateral control is on: lane changes are possible
  longActive @12 :Bool;
  orientationNED @13 :List(Float32);  # rad, north-east-down
  angularVelocity @14 :List(Float32); # rad/s, device frame
  leftBlinker @15 :Bool;
  rightBlinker @16 :Bool;
  currentCurvature @17 :Float32;      # 1/m
  driverMonitoringEscalation @18 :Bool;

  struct Actuators {
    gas @0 :Float32;
    brake @1 :Float32;
    torque @2 :Float32;               # -1..1
    steeringAngleDeg @3 :Float32;
    accel @4 :Float32;                # m/s^2
    longControlState @5 :UInt16;      # an enumeration upstream: 16 bits
    speed @6 :Float32;                # m/s
    curvature @7 :Float32;            # 1/m
    torqueOutputCan @8 :Float32;
  }
}

# Once per drive, after the car was recognised.
struct CarParams {
  brand @0 :Text;                     # carName before 2025
  carFingerprint @1 :Text;
  enableGasInterceptor @2 :Bool;      # retired
  pcmCruise @3 :Bool;
  enableCamera @4 :Bool;              # retired
  enableDsu @5 :Bool;                 # retired
  enableApgs @6 :Bool;                # retired
  minEnableSpeed @7 :Float32;         # m/s
  minSteerSpeed @8 :Float32;          # m/s
  safetyModel @9 :UInt16;             # retired; an enumeration: 16 bits
  safetyParam @10 :Int16;             # retired
  steerMaxBP @11 :List(Float32);      # @11..@16 retired
  steerMaxV @12 :List(Float32);
  gasMaxBP @13 :List(Float32);
  gasMaxV @14 :List(Float32);
  brakeMaxBP @15 :List(Float32);
  brakeMaxV @16 :List(Float32);
  mass @17 :Float32;                  # kg
  wheelbase @18 :Float32;             # m
  centerToFront @19 :Float32;         # m
  steerRatio @20 :Float32;
  steerRatioRear @21 :Float32;
  rotationalInertia @22 :Float32;     # kg m^2
  tireStiffnessFront @23 :Float32;    # N/rad
  tireStiffnessRear @24 :Float32;     # N/rad
  longitudinalTuning @25 :Opaque;
  lateralTuning :union {
    pid @26 :Opaque;
    indi @27 :Opaque;                 # retired
    lqr @40 :Opaque;                  # retired
    torque @67 :Opaque;
  }
  steerLimitAlert @28 :Bool;          # retired
  vEgoStopping @29 :Float32;          # retired
  directAccelControl @30 :Bool;       # retired
  stoppingControl @31 :Bool;          # retired
  startAccel @32 :Float32;            # retired
  steerRateCost @33 :Float32;         # retired
  steerControlType @34 :UInt16;       # enumeration: torque 0, angle 1, curvature 2
  radarUnavailable @35 :Bool;
  steerActuatorDelay @36 :Float32;    # s
  openpilotLongitudinalControl @37 :Bool;
  carVin @38 :Text;
  isPandaBlack @39 :Bool;             # retired
  dashcamOnly @41 :Bool;
  safetyModelPassive @42 :UInt16;     # retired
  transmissionType @43 :UInt16;
  carFw @44 :List(Opaque);
  radarTimeStep @45 :Float32 = 0.05;  # retired
  communityFeature @46 :Bool;         # retired
  steerLimitTimer @47 :Float32;       # s
  lateralParams @48 :Opaque;
  fingerprintSource @49 :UInt16;
  networkLocation @50 :UInt16;
  minSpeedCan @51 :Float32;           # retired
  stoppingDecelRate @52 :Float32;     # retired
  startingAccelRate @53 :Float32;     # retired
  maxSteeringAngleDeg @54 :Float32;   # retired
  fuzzyFingerprint @55 :Bool;
  enableBsm @56 :Bool;                # the car has blind spot sensors
  hasStockCamera @57 :Bool;           # retired
  longitudinalActuatorDelay @58 :Float32;            # s
  vEgoStarting @59 :Float32;          # retired
  stopAccel @60 :Float32;             # m/s^2
  longitudinalActuatorDelayLowerBound @61 :Float32;  # retired
  safetyConfigs @62 :List(Opaque);
  wheelSpeedFactor @63 :Float32;
  flags @64 :UInt32;
  alternativeExperience @65 :Int16;
  notCar @66 :Bool;
  maxLateralAccel @68 :Float32;       # m/s^2
  autoResumeSng @69 :Bool;
  startingState @70 :Bool;            # retired
  alphaLongitudinalAvailable @71 :Bool;
  tireStiffnessFactor @72 :Float32;
  passive @73 :Bool;
  radarDelay @74 :Float32;            # s
  secOcRequired @75 :Bool;
  secOcKeyAvailable @76 :Bool;
  steerAtStandstill @77 :Bool;
}
